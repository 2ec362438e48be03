/* Lets calls that write below a folder fail, from the n-th on, as on a full disk; or records them.

   FAULT_DIR      the folder
   FAULT_CONTROL  a file of four 64-bit integers that all processes share: calls so far; the first that fails (0: none); with which
                  error (0: the process is killed); whether that first one writes half of its bytes, as a disk does that fills up
   FAULT_LOG      a file that gets every call with its bytes, for replaying them
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *folder;
static int64_t *control; /* calls, first, error, half */
static int logged = -1, ready;

__attribute__((constructor)) static void start(void) {
    if (ready) return;
    ready = 1;
    folder = getenv("FAULT_DIR");
    const char *name = getenv("FAULT_CONTROL");
    if (name) {
        int fd = open(name, O_RDWR);
        if (fd >= 0) {
            control = mmap(NULL, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (control == MAP_FAILED) control = NULL;
            close(fd);
        }
    }
}

static int inside_path(const char *path) {
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int inside(int fd) {
    char link[64], target[4096];
    if (!folder || !control) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < 0) return 0;
    target[n] = 0;
    return inside_path(target);
}

/* 0: go on; 1: fail; 2: fail after half */
static int verdict(void) {
    if (!control) return 0;
    int64_t now = __sync_add_and_fetch(control, 1);
    if (!control[1] || now < control[1]) return 0;
    if (control[3] && now == control[1]) return 2;
    return 1;
}

static int fail(void) {
    if (!control[2]) kill(getpid(), SIGKILL);
    errno = (int)control[2];
    return -1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void record(int fd, int64_t offset, const void *data, int64_t size, char kind) {
    static ssize_t (*real)(int, const void *, size_t);
    const char *name = getenv("FAULT_LOG");
    if (!name) return;
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (logged < 0) logged = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    struct stat status;
    fstat(fd, &status);
    int64_t head[4] = {kind, (int64_t)status.st_ino, offset, size};
    real(logged, head, sizeof head);
    if (data) real(logged, data, size);
}

#define FAIL(size, call)                                            \
    if (inside(fd)) {                                               \
        int what = verdict();                                       \
        if (what == 2 && (size) > 1) return call;                   \
        if (what) return fail();                          \
    }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    FAIL(size, real(fd, data, size / 2));
    if (inside(fd)) record(fd, lseek(fd, 0, SEEK_CUR), data, size, 'w');
    return real(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    FAIL(size, real(fd, data, size / 2, at));
    if (inside(fd)) record(fd, at, data, size, 'w');
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *v, int n) {
    REAL(writev);
    FAIL(1, 0);
    return real(fd, v, n);
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) {
    REAL(pwritev);
    FAIL(1, 0);
    return real(fd, v, n, at);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size);
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    static ssize_t (*real)(int, int, off_t *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "sendfile");
    int fd = out;
    FAIL(1, 0);
    return real(out, in, at, size);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) { return sendfile(out, in, at, size); }
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t size, unsigned flags) {
    static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!real) real = dlsym(RTLD_NEXT, "copy_file_range");
    int fd = out;
    FAIL(1, 0);
    return real(in, a, out, b, size, flags);
}
int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    struct stat status;
    if (inside(fd) && fstat(fd, &status) == 0 && size > status.st_size) { FAIL(1, 0); }
    if (inside(fd)) record(fd, size, NULL, 0, 't');
    return real(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    static int (*real)(int, off64_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "posix_fallocate64");
    if (inside(fd) && verdict()) { fail(); return (int)control[2]; }
    return real(fd, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }
int fsync(int fd) {
    REAL(fsync);
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) { FAIL(1, 0); }
    return real(fd);
}
static int new_file(const char *path, int flags) {
    struct stat status;
    return (flags & O_CREAT) && inside_path(path) && stat(path, &status) != 0;
}
#define OPEN(name)                                                                     \
    int name(const char *path, int flags, ...) {                                       \
        static int (*real)(const char *, int, ...);                                    \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                     \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        if (new_file(path, flags) && verdict()) return fail();   \
        return real(path, flags, mode);                                                \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                   \
    int name(int at, const char *path, int flags, ...) {                               \
        static int (*real)(int, const char *, int, ...);                               \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                     \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        if (new_file(path, flags) && verdict()) return fail();   \
        return real(at, path, flags, mode);                                            \
    }
OPENAT(openat)
OPENAT(openat64)
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (inside_path(path) && verdict()) return fail();
    return real(path, mode);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    if (inside_path(to) && verdict()) return fail();
    return real(from, to);
}
