# SPDX-License-Identifier: MIT
"""Builds the adapter for the installed PyTorch, and caches it.

PyTorch's allocator interface is a C++ class whose virtual methods have a different order in each version.  The adapter is compiled
with the headers of the installed PyTorch by the installed compiler.  It is cached in ${XDG_CACHE_HOME:-~/.cache}/xseg.  The file
name contains PyTorch's version and C++ ABI, the version of xseg, and a digest of the sources and of PyTorch's headers, which can
differ between nightly builds of a version.
"""
import contextlib
import ctypes
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, Set, Tuple

from xseg import _library, _structs

HERE = pathlib.Path(__file__).resolve().parent
#: State of xseg.torch that outlives a reload of the module: pools of tags by name and device, and names of registered() tags.
TAGS: Dict[Tuple[str, int], Any] = {}
REGISTERED: Set[str] = set()
OLDEST = (2, 6)
COMPILERS = ("c++", "g++", "clang++")
# Processes that start at the same time, such as ranks, do not repeat a failed build.
FAILURE_SECONDS = 20
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
#: The methods of PyTorch's interface that the adapter implements.
COVERED = frozenset("""
    allocate allocateWithAddress annotateMemory attachAllocatorTraceTracker attachOomRejectionObserver
    attachOutOfMemoryObserver beginAllocateToPool cacheInfo checkPoolLiveAllocations copy_data createOrIncrefPool
    emptyCache enable enablePeerAccess endAllocateToPool ensureExistsAndIncrefPool getBaseAllocation getCheckpointState
    getContextForPointer getDeviceStats getExpandableSegmentSizes getIpcDevPtr getMemoryFraction getMemoryInfo
    getPoolUseCount getUserMetadata init initialized isEnabled isHistoryEnabled is_simple_data_ptr markCaptureBegin
    markCaptureEnd memcpyAsync name popCompileContext pushCompileContext raw_alloc raw_alloc_with_stream raw_delete
    raw_deleter recordAnnotation recordHistory recordStream releasePool resetAccumulatedStats resetPeakStats
    setCheckpointPoolState setMemoryFraction setNoSplit setUseOnOOM setUserMetadata shareIpcHandle snapshot
    supportsUserMetadata
""".split())


class LoadError(ImportError):
    """xseg cannot be PyTorch's allocator in this process; the message contains the reason and what to do."""


class Killed(LoadError):
    """A signal terminated the compiler; a retry may succeed."""


class Terminated(BaseException):
    """SIGTERM during a build."""


def sources() -> pathlib.Path:
    """Get the folder of the C++ sources, in the wheel or else in the source tree."""
    for folder in (HERE / "src", *(parent / "src/adapters/torch" for parent in HERE.parents[:6])):
        if (folder / "all.cpp").exists():
            return folder
    raise LoadError(f"xseg.torch: adapter sources not found for the package, {HERE}; reinstall the wheel of xseg")


def headers(torch_folder: pathlib.Path) -> Tuple[pathlib.Path, pathlib.Path]:
    """Get the folders of PyTorch's headers and of the headers of the CUDA runtime."""
    own = torch_folder / "include"
    if not (own / "c10/cuda/CUDACachingAllocator.h").exists():
        raise LoadError(f"xseg.torch: PyTorch headers not found, {own}; install PyTorch from a wheel")
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    # PyTorch's packages have headers of its CUDA version; the toolkit of the environment may have another version.
    folders = sorted(torch_folder.parent.glob("nvidia/cu[0-9]*/include"))
    folders += [torch_folder.parent / "nvidia/cuda_runtime/include"]
    folders += [pathlib.Path(cuda_home, "include")] if cuda_home else []
    folders += [pathlib.Path("/usr/local/cuda/include")]
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists():
            return own, folder
    raise LoadError(f"xseg.torch: cuda_runtime_api.h not found, searched {', '.join(map(str, folders))}; install the package "
                  "nvidia-cuda-runtime of PyTorch's CUDA version, or set CUDA_HOME to a CUDA toolkit")


def bare(source: str) -> str:
    """Remove comments, strings and preprocessor lines from C++."""
    found = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', " ", source, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*", "", found, flags=re.MULTILINE | re.DOTALL)


def members(text: str) -> List[str]:
    """Get the declarations of a class body at the start of the text, with empty parentheses and without function bodies."""
    found, depth = [""], 0
    for character in text:
        depth -= character in ")}"
        if depth < 0:
            break
        if depth == 0:
            found[-1] += character if character not in "{}" else ""
            if character in ";}" and not found[-1].rstrip().endswith("="):
                found.append("")
        depth += character in "({"
    return found


def methods(include: pathlib.Path) -> List[Tuple[str, bool]]:
    """Get the virtual methods of the interface, and whether each is pure."""
    found = []
    for file, kind in (("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
                       ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator")):
        text = bare((include / file).read_text(encoding="utf-8")) if (include / file).exists() else ""
        class_head = re.search(rf"^(?:class|struct)[ \w]* {kind}\b[^;{{]*{{", text, re.MULTILINE)
        if class_head:
            for declaration in members(text[class_head.end():]):
                plain = declaration
                for _ in range(declaration.count("<")):  # types such as std::function<bool(int)> contain parentheses
                    plain = re.sub(r"<[^<>]*>", "", plain)
                name = re.search(r"\bvirtual\b.*?(?<!~)\b(?!(?:decltype|__\w+|[A-Z\d_]+)\b)(\w+)\s*\(\)", plain, re.DOTALL)
                if name:
                    found.append((name[1], bool(re.search(r"=\s*0\s*;", plain))))
        elif kind == "CUDAAllocator":
            raise LoadError(f"xseg.torch: unsupported version of PyTorch, no class {kind} in {include / file}; install a newer xseg")
    return found


def uncovered(include: pathlib.Path) -> List[str]:
    """Methods of this version that the adapter does not implement and that have a default implementation."""
    unknown = [(name, is_needed) for name, is_needed in methods(include) if name not in COVERED]
    needed = sorted({name for name, is_needed in unknown if is_needed})
    if needed:
        raise LoadError(f"xseg.torch: xseg {_structs.VERSION} does not implement allocator methods of this version of PyTorch, "
                      f"{', '.join(needed)}; install a newer xseg")
    return sorted({name for name, _ in unknown})


def compiler() -> List[str]:
    """Get the command of the C++ compiler."""
    configured = os.environ.get("CXX")
    if configured:
        command = shlex.split(configured)
        if command and shutil.which(command[0]):
            return command
        raise LoadError(f"CXX: compiler not found, {configured}; set CXX to an installed compiler, or unset it")
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise LoadError("xseg.torch: no C++ compiler to build the adapter for the installed PyTorch; install one (Debian, Ubuntu: apt "
                  "install g++), set CXX, or use libxseg-torch.so, which needs no compiler")


def cache() -> pathlib.Path:
    """Get the cache folder.  Its files are loaded, so it must belong to this user or root.  It may be read-only."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = pathlib.Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "xseg")
    try:
        if not folder.is_absolute():
            raise FileNotFoundError("the user has no home folder")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
            raise PermissionError(f"{folder} belongs to another user, or other users can write to it")
    except OSError as error:
        raise LoadError(f"xseg.torch: cannot store the adapter, {error}; set XDG_CACHE_HOME to a writable folder") from error
    return folder


def digest(torch_folder: pathlib.Path) -> str:
    """Digest of the sources, the public headers, and the headers of PyTorch's interface."""
    found = hashlib.sha256()
    own = sources()
    for files in ([*own.glob("*.cpp"), *own.glob("*.h")], pathlib.Path(_library.include(), "xseg").glob("*.h"),
                  (torch_folder / "include/c10/core").glob("*.h"), (torch_folder / "include/c10/cuda").glob("*.h")):
        for file in sorted(files):
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def target(torch_folder: pathlib.Path, version: str, is_cxx11: bool) -> pathlib.Path:
    """Get the file of the adapter for a PyTorch."""
    name = f"torch-{version}-abi{int(is_cxx11)}-xseg-{_structs.VERSION}-{digest(torch_folder)}.so"
    return cache() / re.sub(r"[^\w.+-]", "_", name)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Lock a file, so that one process builds it and the others wait."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def flags(include: pathlib.Path, is_cxx11: bool) -> List[str]:
    """Get the compiler flags for PyTorch's headers in `include` and PyTorch's C++ ABI."""
    interface = (include / "c10/cuda/CUDACachingAllocator.h").read_text(encoding="utf-8")
    sizes = ["-DXSEG_TORCH_SEGMENT_SIZES"] if "struct StreamSegmentSize" in interface else []
    return [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(is_cxx11)}", *sizes]


def command(scratch: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> List[str]:
    """Get the compiler command for the sources, which are in `scratch` as in the source tree."""
    own, cuda = headers(torch_folder)
    return [*compiler(), *flags(own, is_cxx11), "-iquote", str(scratch),
            "-I", _library.include(), "-isystem", str(own), "-isystem", str(cuda),
            str(scratch / "src/adapters/torch/all.cpp"), "-o", str(scratch / "adapter.so"),
            "-L", str(torch_folder / "lib"), "-lc10", "-lc10_cuda", _library.path()]


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Delay the termination by SIGTERM until the block has cleaned up, if the signal has its default action."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # only the main thread can set signal handlers
        return

    def stop(number: int, frame: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_compiler(words: List[str]) -> "subprocess.CompletedProcess[str]":
    """Run the compiler; on an exception, kill it with its child processes."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace", env={**os.environ, "LC_ALL": "C"}, start_new_session=True) as process:
        try:
            _, error_output = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, "", error_output)


def check_compiled(process: "subprocess.CompletedProcess[str]", torch_folder: pathlib.Path) -> None:
    """Raise LoadError if the compiler failed."""
    if process.returncode == 0:
        return
    # The compiler driver reports signals of its child processes in its own format.
    reported = re.search(r"(\w+) signal terminated program|unable to execute command: (\w+)", process.stderr)
    if process.returncode < 0 or reported:
        signal_name = (reported[1] or reported[2]) if reported else signal.Signals(-process.returncode).name
        raise Killed(f"xseg.torch: compiler of the adapter was killed by a signal, {process.args[0]}, {signal_name}, usually because host memory "
                     "is low; retry when fewer programs run")
    first_error = next((line for line in process.stderr.splitlines() if "error" in line), process.stderr[:500])
    raise LoadError(f"xseg.torch: adapter does not compile with PyTorch's headers, {torch_folder}, {process.args[0]} returned "
                  f"{process.returncode}: {first_error.strip()}; set CXX to a compiler that supports C++20 (GCC 11, Clang 14), or use "
                  "libxseg-torch.so, which needs no compiler")


def build(path: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> None:
    """Compile in a folder next to the target, and rename the result, so that the file is always complete."""
    with terminable(), tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        scratch = pathlib.Path(folder)
        shutil.copytree(sources(), scratch / "src/adapters/torch")
        check_compiled(run_compiler(command(scratch, torch_folder, is_cxx11)), torch_folder)
        adapter_digest = hashlib.sha256((scratch / "adapter.so").read_bytes()).hexdigest()
        (scratch / "digest").write_text(adapter_digest, encoding="ascii")
        os.replace(scratch / "digest", path.with_suffix(".sha256"))
        os.replace(scratch / "adapter.so", path)


def is_complete(path: pathlib.Path) -> bool:
    """Get whether a file exists with the digest of the build: the loader would crash on a truncated file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.with_suffix(".sha256").read_text(encoding="ascii")
    except OSError:
        return False


def open_adapter(path: pathlib.Path) -> ctypes.CDLL:
    """Load an adapter, after the library that it calls."""
    ctypes.CDLL(_library.path(), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def failure_file(path: pathlib.Path) -> pathlib.Path:
    """Get the file that contains the error of the last failed build."""
    return path.with_suffix(".failed")


def build_inputs(torch_folder: pathlib.Path, is_cxx11: bool) -> str:
    """Get the inputs of a build that are not in the name of the target."""
    return repr([command(pathlib.Path("."), torch_folder, is_cxx11), shutil.which(compiler()[0])])


def raise_recent_failure(path: pathlib.Path, inputs: str) -> None:
    """Raise the recent error of another process for the same build."""
    try:
        seconds = time.time() - failure_file(path).stat().st_mtime
        failed_inputs, _, message = failure_file(path).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return
    if failed_inputs == inputs and 0 <= seconds < FAILURE_SECONDS:
        raise LoadError(f"{message} (another process failed {seconds:.0f} s ago; the build is retried {FAILURE_SECONDS} s after a failure)")


def build_and_open(path: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> ctypes.CDLL:
    """Build and load; a failure is recorded for processes that start at the same time."""
    inputs = build_inputs(torch_folder, is_cxx11)
    raise_recent_failure(path, inputs)
    for stale in path.parent.glob("build-*"):  # folders of killed processes
        with contextlib.suppress(OSError):
            if time.time() - stale.stat().st_mtime > 24 * 3600:
                shutil.rmtree(stale, ignore_errors=True)
    try:
        build(path, torch_folder, is_cxx11)
        try:
            return open_adapter(path)
        except OSError as error:
            raise LoadError(f"xseg.torch: cannot load the adapter that was built, {error}; set CXX to the compiler of the system's C++ "
                          "library") from error
    except Killed:
        raise
    except LoadError as error:
        failure_file(path).write_text(f"{inputs}\n{error}", encoding="utf-8")
        raise


def load(torch_folder: pathlib.Path, version: str, is_cxx11: bool) -> ctypes.CDLL:
    """Load the adapter for a PyTorch from the cache, or build it.  A cached file that cannot be loaded is built again."""
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < OLDEST:
        raise LoadError(f"xseg.torch: unsupported version of PyTorch, {version}; install {'.'.join(map(str, OLDEST))} or newer")
    path = target(torch_folder, version, is_cxx11)
    if is_complete(path):
        with contextlib.suppress(OSError):
            return open_adapter(path)
    uncovered(headers(torch_folder)[0])
    compiler()
    try:
        with locked(path):
            if is_complete(path):
                with contextlib.suppress(OSError):
                    return open_adapter(path)
            return build_and_open(path, torch_folder, is_cxx11)
    except OSError as error:
        raise LoadError(f"xseg.torch: cannot store the adapter, {error}; set XDG_CACHE_HOME to a writable folder on a disk with free "
                      "space") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt("xseg.torch: build of the adapter was interrupted; the next import builds it again") from None
