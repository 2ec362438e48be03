/* A file system that shows a folder and waits before it answers a read: a stand-in for network storage.
 *
 * Reads pass through the page cache as on any mount, so what was read once is fast; a limit on parallel requests makes a server
 * that is busy. Written in C so that the server takes next to no processor time from the readers that are measured.
 *
 *     slowfs FOLDER MOUNT DELAY_MS PARALLEL
 *
 * Needs libfuse 2 at run time only: what is used of its interface (version 2.6, unchanged since 2006) is declared here.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct fuse_file_info {
    int flags;
    unsigned long fh_old;
    int writepage;
    unsigned int bits;
    uint64_t fh;
    uint64_t lock_owner;
};

typedef int (*fill_dir)(void *buffer, const char *name, const struct stat *found, off_t offset);

struct fuse_operations {
    int (*getattr)(const char *, struct stat *);
    void *before_open[13]; /* readlink ... utime */
    int (*open)(const char *, struct fuse_file_info *);
    int (*read)(const char *, char *, size_t, off_t, struct fuse_file_info *);
    void *before_release[3]; /* write, statfs, flush */
    int (*release)(const char *, struct fuse_file_info *);
    void *before_readdir[6]; /* fsync ... opendir */
    int (*readdir)(const char *, void *, fill_dir, off_t, struct fuse_file_info *);
};

int fuse_main_real(int argc, char *argv[], const struct fuse_operations *operations, size_t size, void *data);

static const char *folder;
static struct timespec delay;
static sem_t turn;

static const char *at(const char *path, char *place) {
    snprintf(place, 4096, "%s%s", folder, path);
    return place;
}

static int slow_getattr(const char *path, struct stat *found) {
    char place[4096];
    return lstat(at(path, place), found) ? -errno : 0;
}

static int slow_open(const char *path, struct fuse_file_info *file) {
    char place[4096];
    if ((file->flags & O_ACCMODE) != O_RDONLY) return -EROFS;
    int descriptor = open(at(path, place), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return -errno;
    file->fh = (uint64_t)descriptor;
    return 0;
}

static int slow_read(const char *path, char *buffer, size_t size, off_t offset, struct fuse_file_info *file) {
    (void)path;
    while (sem_wait(&turn) && errno == EINTR) {}
    nanosleep(&delay, NULL);
    ssize_t count = pread((int)file->fh, buffer, size, offset);
    int result = count < 0 ? -errno : (int)count;
    sem_post(&turn);
    return result;
}

static int slow_release(const char *path, struct fuse_file_info *file) {
    (void)path;
    close((int)file->fh);
    return 0;
}

static int slow_readdir(const char *path, void *buffer, fill_dir fill, off_t offset, struct fuse_file_info *file) {
    char place[4096];
    (void)offset;
    (void)file;
    DIR *listing = opendir(at(path, place));
    if (listing == NULL) return -errno;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) fill(buffer, entry->d_name, NULL, 0);
    closedir(listing);
    return 0;
}

int main(int argc, char *argv[]) {
    if (argc != 5) {
        fprintf(stderr, "usage: slowfs FOLDER MOUNT DELAY_MS PARALLEL\n");
        return 2;
    }
    folder = realpath(argv[1], NULL);
    if (folder == NULL) {
        perror(argv[1]);
        return 1;
    }
    double milliseconds = atof(argv[3]);
    delay.tv_sec = (time_t)(milliseconds / 1e3);
    delay.tv_nsec = (long)((milliseconds - 1e3 * (double)delay.tv_sec) * 1e6);
    sem_init(&turn, 0, (unsigned)atoi(argv[4]));
    /* 128 KiB of read-ahead is the default of NFS and FUSE mounts. The kernel sends no more than max_background announced reads at
     * once, 12 by default; here the server sets the limit. */
    char options[] = "ro,kernel_cache,max_readahead=131072,max_background=256,congestion_threshold=256,"
                     "attr_timeout=3600,entry_timeout=3600";
    char *arguments[] = {argv[0], argv[2], "-f", "-o", options, NULL};
    static const struct fuse_operations operations = {
        .getattr = slow_getattr,
        .open = slow_open,
        .read = slow_read,
        .release = slow_release,
        .readdir = slow_readdir,
    };
    return fuse_main_real(5, arguments, &operations, sizeof operations, NULL);
}
