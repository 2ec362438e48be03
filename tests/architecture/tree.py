"""The rules of the source tree as functions over a root folder: each returns the sentences that describe its breaches.

They take the root so that the tests can show, on a planted tree, that every rule is able to fail.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mlarray", "mlarray_convert")
MAX_MODULE_LINES = 500
BANNED_WORDS = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
# Written apart, so that this file does not break the rule it states.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")) + r")\b")
# Folders of one machine, wherever they start a path, and the folder beside the checkout.
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:work|tmp|home|root|Users|mnt|opt|farm)/\w|[A-Z]:\\Users\\|\.\./" + "shared")

IMAGING = {
    *("nibabel", "SimpleITK", "itk", "h5py", "zarr", "pydicom", "nrrd", "tifffile"),
    *(
        "imagecodecs",
        "imageio",
        "skimage",
        "PIL",
        "metaimageio",
        "gdcm",
        "pylibjpeg",
        "openjpeg",
        "ome_zarr",
        "numcodecs",
    ),
}
FRAMEWORKS = {"torch", "monai", "torchio", "dask", "distributed", "napari"}
NOT_LOADED_BY_IMPORT = IMAGING | FRAMEWORKS | {"blosc2", "hypothesis", "pytest", "scipy", "pandas"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: what it loads, where, and whether loading waits for a call."""

    module: str
    line: int
    in_function: bool
    for_types_only: bool

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class LibraryRule:
    """Libraries that only some paths (a file, or a folder with its slash) may import."""

    libraries: frozenset[str]
    allowed: tuple[str, ...]
    only_in_functions: bool = False


LIBRARY_RULES = (
    LibraryRule(frozenset({"blosc2"}), ("mlarray/storage/blosc.py",)),
    LibraryRule(frozenset(IMAGING), ("mlarray/formats/",), only_in_functions=True),
    LibraryRule(frozenset({"click", "tqdm", "rich"}), ("mlarray_convert/cli/",)),
    LibraryRule(frozenset({"torch", "monai", "torchio", "napari"}), ("mlarray/integrations/",)),
    LibraryRule(frozenset({"dask", "distributed"}), ("mlarray/integrations/", "mlarray_convert/cluster/")),
    LibraryRule(frozenset({"hypothesis", "pytest"}), ("mlarray/testing/",)),
)

WITHOUT_FILES = ("mlarray/streaming/", "mlarray/transforms/")
FILE_LAYERS = ("mlarray.formats", "mlarray.storage")
_FILE_MODULES = (
    *("case_layouts", "case_set", "class_locations", "fingerprint", "kept", "patch_writer", "plan_source", "saving"),
)
WITH_FILES = tuple(f"mlarray/streaming/{name}.py" for name in _FILE_MODULES)


def modules(root: Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, Path]]:
    """Every Python file below the folders, with its path relative to root in forward slashes."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path


def imports(path: Path, module: str) -> list[Import]:
    """Every import of one file, those by name (``import_module("x")``) included.

    Parameters
    ----------
    path : Path
        The file.
    module : str
        Its path relative to the root, against which relative imports are resolved.
    """
    package = module.split("/")[:-1]
    found: list[Import] = []

    def visit(node: ast.AST, *, in_function: bool, for_types_only: bool) -> None:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = [f"{source}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        found.extend(Import(name, node.lineno, in_function, for_types_only) for name in names)
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_block = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in ast.iter_child_nodes(node):
            in_block = typing_block and child in node.body
            visit(child, in_function=in_function, for_types_only=for_types_only or in_block)

    visit(ast.parse(path.read_text(encoding="utf-8")), in_function=False, for_types_only=False)
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def misplaced_libraries(root: Path) -> list[str]:
    """Imports of a library outside the one place that owns it, or at module level where it must wait for a call."""
    breaches = []
    for name, path in modules(root):
        for found in imports(path, name):
            for rule in LIBRARY_RULES:
                if found.library not in rule.libraries:
                    continue
                if not name.startswith(rule.allowed):
                    breaches.append(f"{name}:{found.line} imports {found.module}; only {', '.join(rule.allowed)} may")
                elif rule.only_in_functions and not (found.in_function or found.for_types_only):
                    breaches.append(
                        f"{name}:{found.line} imports {found.module} at module level; import it in the function"
                    )
    return breaches


def file_layers_below_streams(root: Path) -> list[str]:
    """Imports of formats or storage by the modules that receive a Source and know no files."""
    return [
        f"{name}:{found.line} imports {found.module}; streaming and transforms receive a Source"
        for name, path in modules(root)
        if name.startswith(WITHOUT_FILES) and name not in WITH_FILES
        for found in imports(path, name)
        if f"{found.module}.".startswith(tuple(f"{layer}." for layer in FILE_LAYERS))
    ]


def oversized_modules(root: Path) -> list[str]:
    """Modules of the packages and benchmarks above 500 lines."""
    counted = (
        (name, len(path.read_text(encoding="utf-8").splitlines()))
        for name, path in modules(root, (*PACKAGES, "benchmarks"))
    )
    return [
        f"{name} has {lines} lines, at most {MAX_MODULE_LINES}" for name, lines in counted if lines > MAX_MODULE_LINES
    ]


def banned_module_names(root: Path) -> list[str]:
    """Files and folders whose name says nothing about what they own."""
    return [
        f"{name}: {part!r} is not a name for a module"
        for name, _ in modules(root, (*PACKAGES, "benchmarks", "tests"))
        for part in name.removesuffix(".py").split("/")
        if BANNED_WORDS & set(part.lower().split("_"))
    ]


def unfinished_marks(root: Path) -> list[str]:
    """Lines of the packages that say something is still to be done."""
    return [
        f"{name}:{number} {line.strip()}"
        for name, path in modules(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def tracked_files(root: Path) -> list[Path]:
    """Files under version control; where git cannot tell (a source archive, another owner), every file but caches."""
    if (root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
        if listed.returncode == 0:
            paths = [root / name for name in listed.stdout.decode().split("\0") if name]
            return [path for path in paths if path.is_file()]
    return [path for path in sorted(root.rglob("*")) if path.is_file() and not _generated(path.relative_to(root))]


def _generated(path: Path) -> bool:
    folders = (".git", ".venv", ".hypothesis", ".benchmarks", "build", "dist", "__pycache__")
    return any(part in folders or part.endswith(("_cache", ".egg-info")) for part in path.parts)


def machine_paths(root: Path) -> list[str]:
    """Lines of tracked text files that name a folder of one machine."""
    breaches = []
    for path in tracked_files(root):
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                breaches.append(f"{path.relative_to(root).as_posix()}:{number} {line.strip()[:160]}")
    return breaches
