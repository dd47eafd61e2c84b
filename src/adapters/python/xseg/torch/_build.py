# SPDX-License-Identifier: MIT
"""Builds the adapter for the PyTorch that is installed, once, and keeps it.

PyTorch's allocator interface is a C++ class whose methods stand in another order in each version, so the adapter is
compiled against the headers that came with PyTorch, by the compiler that is there.  What was built lies in
${XDG_CACHE_HOME:-~/.cache}/xseg under PyTorch's version, its C++ ABI, the version of xseg, and a digest of the sources
and of PyTorch's headers: those of two nightly builds of one version may differ.
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
#: Of xseg.torch, whose tags outlive a reload of that module: pools by name and device, and the names that others register.
TAGS: Dict[Tuple[str, int], Any] = {}
REGISTERED: Set[str] = set()
OLDEST = (2, 6)
COMPILERS = ("c++", "g++", "clang++")
# Processes that start together, such as ranks, need not all see the same build fail.
FAILURE_SECONDS = 20
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
#: The methods of PyTorch's interface that the adapter has.
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


class Refused(ImportError):
    """xseg cannot be PyTorch's allocator in this process; the message contains the reason and what to do."""


class Killed(Refused):
    """A signal has ended the compiler, which says nothing about the next try."""


class Terminated(BaseException):
    """SIGTERM came during a build."""


def sources() -> pathlib.Path:
    """The folder of the C++ sources: the wheel's, else the source tree's."""
    for folder in (HERE / "src", *(parent / "src/adapters/torch" for parent in HERE.parents[:6])):
        if (folder / "all.cpp").exists():
            return folder
    raise Refused(f"xseg.torch: adapter sources not found for the package, {HERE}; reinstall the wheel of xseg")


def headers(torch_folder: pathlib.Path) -> Tuple[pathlib.Path, pathlib.Path]:
    """The folders of PyTorch's headers and of the CUDA runtime's."""
    own = torch_folder / "include"
    if not (own / "c10/cuda/CUDACachingAllocator.h").exists():
        raise Refused(f"xseg.torch: PyTorch headers not found, {own}; install PyTorch from a wheel")
    chosen = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    # Those that came with PyTorch are of its CUDA version, whatever toolkit the environment names.
    folders = sorted(torch_folder.parent.glob("nvidia/cu[0-9]*/include"))
    folders += [torch_folder.parent / "nvidia/cuda_runtime/include"]
    folders += [pathlib.Path(chosen, "include")] if chosen else []
    folders += [pathlib.Path("/usr/local/cuda/include")]
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists():
            return own, folder
    raise Refused(f"xseg.torch: cuda_runtime_api.h not found, searched {', '.join(map(str, folders))}; install the package "
                  "nvidia-cuda-runtime of PyTorch's CUDA version, or set CUDA_HOME to a CUDA toolkit")


def bare(source: str) -> str:
    """C++ without comments, texts, and lines of the preprocessor."""
    found = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', " ", source, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*", "", found, flags=re.MULTILINE | re.DOTALL)


def members(text: str) -> List[str]:
    """The declarations of a class, whose body the text begins with; what stands in brackets is (), bodies are left out."""
    found, depth = [""], 0
    for mark in text:
        depth -= mark in ")}"
        if depth < 0:
            break
        if depth == 0:
            found[-1] += mark if mark not in "{}" else ""
            if mark in ";}" and not found[-1].rstrip().endswith("="):
                found.append("")
        depth += mark in "({"
    return found


def methods(include: pathlib.Path) -> List[Tuple[str, bool]]:
    """The virtual methods of the interface, and whether each has to be overridden."""
    found = []
    for file, kind in (("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
                       ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator")):
        text = bare((include / file).read_text(encoding="utf-8")) if (include / file).exists() else ""
        head = re.search(rf"^(?:class|struct)[ \w]* {kind}\b[^;{{]*{{", text, re.MULTILINE)
        if head:
            for each in members(text[head.end():]):
                plain = each
                for _ in range(each.count("<")):  # a type such as std::function<bool(int)> has brackets as well
                    plain = re.sub(r"<[^<>]*>", "", plain)
                name = re.search(r"\bvirtual\b.*?(?<!~)\b(?!(?:decltype|__\w+|[A-Z\d_]+)\b)(\w+)\s*\(\)", plain, re.DOTALL)
                if name:
                    found.append((name[1], bool(re.search(r"=\s*0\s*;", plain))))
        elif kind == "CUDAAllocator":
            raise Refused(f"xseg.torch: unsupported version of PyTorch, no class {kind} in {include / file}; install a newer xseg")
    return found


def uncovered(include: pathlib.Path) -> List[str]:
    """Methods of this version that the adapter does not have, and that PyTorch gives a body of its own."""
    unknown = [(name, is_needed) for name, is_needed in methods(include) if name not in COVERED]
    needed = sorted({name for name, is_needed in unknown if is_needed})
    if needed:
        raise Refused(f"xseg.torch: xseg {_structs.VERSION} does not implement allocator methods of this version of PyTorch, "
                      f"{', '.join(needed)}; install a newer xseg")
    return sorted({name for name, _ in unknown})


def compiler() -> List[str]:
    """The C++ compiler's command."""
    chosen = os.environ.get("CXX")
    if chosen:
        command = shlex.split(chosen)
        if command and shutil.which(command[0]):
            return command
        raise Refused(f"CXX: compiler not found, {chosen}; set CXX to an installed compiler, or unset it")
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise Refused("xseg.torch: no C++ compiler to build the adapter for the installed PyTorch; install one (Debian, Ubuntu: apt "
                  "install g++), set CXX, or use libxseg-torch.so, which needs no compiler")


def cache() -> pathlib.Path:
    """The folder for what is built.  What is there is loaded, so it is this user's or root's; it may be read-only."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = pathlib.Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "xseg")
    try:
        if not folder.is_absolute():
            raise FileNotFoundError("the user has no home folder")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
            raise PermissionError(f"{folder} belongs to another user, or other users can write to it")
    except OSError as refusal:
        raise Refused(f"xseg.torch: cannot store the adapter, {refusal}; set XDG_CACHE_HOME to a writable folder") from refusal
    return folder


def digest(torch_folder: pathlib.Path) -> str:
    """Of the sources, the public headers, and those headers of PyTorch that have its interface."""
    found = hashlib.sha256()
    own = sources()
    for files in ([*own.glob("*.cpp"), *own.glob("*.h")], pathlib.Path(_library.include(), "xseg").glob("*.h"),
                  (torch_folder / "include/c10/core").glob("*.h"), (torch_folder / "include/c10/cuda").glob("*.h")):
        for file in sorted(files):
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def target(torch_folder: pathlib.Path, version: str, is_cxx11: bool) -> pathlib.Path:
    """The file that the adapter for a PyTorch is kept in."""
    name = f"torch-{version}-abi{int(is_cxx11)}-xseg-{_structs.VERSION}-{digest(torch_folder)}.so"
    return cache() / re.sub(r"[^\w.+-]", "_", name)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """One process at a time builds a file; the others wait, and find it."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def flags(include: pathlib.Path, is_cxx11: bool) -> List[str]:
    """What a compiler is told for PyTorch's headers in `include`, and the C++ ABI that PyTorch was built with."""
    interface = (include / "c10/cuda/CUDACachingAllocator.h").read_text(encoding="utf-8")
    sizes = ["-DXSEG_TORCH_SEGMENT_SIZES"] if "struct StreamSegmentSize" in interface else []
    return [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(is_cxx11)}", *sizes]


def command(scratch: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> List[str]:
    """How the sources, which lie in `scratch` as in the source tree, are compiled."""
    own, cuda = headers(torch_folder)
    return [*compiler(), *flags(own, is_cxx11), "-iquote", str(scratch),
            "-I", _library.include(), "-isystem", str(own), "-isystem", str(cuda),
            str(scratch / "src/adapters/torch/all.cpp"), "-o", str(scratch / "adapter.so"),
            "-L", str(torch_folder / "lib"), "-lc10", "-lc10_cuda", _library.path()]


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, where it would end the process at once, does so once what is within has cleaned up."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # only the main thread can say what a signal does
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
    """Run it to its end, or, where an exception comes, end it with the programs that it has started."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace", env={**os.environ, "LC_ALL": "C"}, start_new_session=True) as process:
        try:
            _, complaints = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, "", complaints)


def check_made(made: "subprocess.CompletedProcess[str]", torch_folder: pathlib.Path) -> None:
    """Raise Refused if the compiler has failed."""
    if made.returncode == 0:
        return
    # The compiler runs programs, and reports in its own format how they ended.
    told = re.search(r"(\w+) signal terminated program|unable to execute command: (\w+)", made.stderr)
    if made.returncode < 0 or told:
        ended = (told[1] or told[2]) if told else signal.Signals(-made.returncode).name
        raise Killed(f"xseg.torch: compiler of the adapter was killed by a signal, {made.args[0]}, {ended}, usually because host memory "
                     "is low; retry when fewer programs run")
    first = next((line for line in made.stderr.splitlines() if "error" in line), made.stderr[:500])
    raise Refused(f"xseg.torch: adapter does not compile with PyTorch's headers, {torch_folder}, {made.args[0]} returned "
                  f"{made.returncode}: {first.strip()}; set CXX to a compiler that supports C++20 (GCC 11, Clang 14), or use "
                  "libxseg-torch.so, which needs no compiler")


def build(path: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> None:
    """Compile into a folder beside the target, and rename: what is there under the name is whole."""
    with terminable(), tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        scratch = pathlib.Path(folder)
        shutil.copytree(sources(), scratch / "src/adapters/torch")
        check_made(run_compiler(command(scratch, torch_folder, is_cxx11)), torch_folder)
        made_digest = hashlib.sha256((scratch / "adapter.so").read_bytes()).hexdigest()
        (scratch / "digest").write_text(made_digest, encoding="ascii")
        os.replace(scratch / "digest", path.with_suffix(".sha256"))
        os.replace(scratch / "adapter.so", path)


def is_whole(path: pathlib.Path) -> bool:
    """Whether a file is there as it was built: the loader would crash on one that was cut."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.with_suffix(".sha256").read_text(encoding="ascii")
    except OSError:
        return False


def open_adapter(path: pathlib.Path) -> ctypes.CDLL:
    """Load what was built, behind the library that it calls."""
    ctypes.CDLL(_library.path(), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def failure(path: pathlib.Path) -> pathlib.Path:
    """The file that contains the error of the last failed build."""
    return path.with_suffix(".failed")


def attempt(torch_folder: pathlib.Path, is_cxx11: bool) -> str:
    """What a build hangs on, beside what the name of the target says."""
    return repr([command(pathlib.Path("."), torch_folder, is_cxx11), shutil.which(compiler()[0])])


def recall_failure(path: pathlib.Path, tried: str) -> None:
    """Raise the error of another process in which the same build has just failed."""
    try:
        seconds = time.time() - failure(path).stat().st_mtime
        same, _, message = failure(path).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return
    if same == tried and 0 <= seconds < FAILURE_SECONDS:
        raise Refused(f"{message} (another process failed {seconds:.0f} s ago; the build is retried {FAILURE_SECONDS} s after a failure)")


def build_and_open(path: pathlib.Path, torch_folder: pathlib.Path, is_cxx11: bool) -> ctypes.CDLL:
    """Build and load; a failure is noted for processes that start at the same time."""
    tried = attempt(torch_folder, is_cxx11)
    recall_failure(path, tried)
    for left in path.parent.glob("build-*"):  # of processes that were killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)
    try:
        build(path, torch_folder, is_cxx11)
        try:
            return open_adapter(path)
        except OSError as refusal:
            raise Refused(f"xseg.torch: cannot load the adapter that was built, {refusal}; set CXX to the compiler of the system's C++ "
                          "library") from refusal
    except Killed:
        raise
    except Refused as refusal:
        failure(path).write_text(f"{tried}\n{refusal}", encoding="utf-8")
        raise


def load(torch_folder: pathlib.Path, version: str, is_cxx11: bool) -> ctypes.CDLL:
    """The adapter for a PyTorch: kept, or built now.  What is kept but cannot be loaded is built once more."""
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < OLDEST:
        raise Refused(f"xseg.torch: unsupported version of PyTorch, {version}; install {'.'.join(map(str, OLDEST))} or newer")
    path = target(torch_folder, version, is_cxx11)
    if is_whole(path):
        with contextlib.suppress(OSError):
            return open_adapter(path)
    uncovered(headers(torch_folder)[0])
    compiler()
    try:
        with locked(path):
            if is_whole(path):
                with contextlib.suppress(OSError):
                    return open_adapter(path)
            return build_and_open(path, torch_folder, is_cxx11)
    except OSError as refusal:
        raise Refused(f"xseg.torch: cannot store the adapter, {refusal}; set XDG_CACHE_HOME to a writable folder on a disk with free "
                      "space") from refusal
    except KeyboardInterrupt:
        raise KeyboardInterrupt("xseg.torch: build of the adapter was interrupted; the next import builds it again") from None
