#!/usr/bin/env python3
"""What built libraries may export, need and call.

  check_symbols.py exports LIBRARY MAP         exports are exactly the global names of the version script
  check_symbols.py preload LIBRARY [SONAME]    needs libc and the loader only, bound at load, no text relocations, no
                                               executable stack, this SONAME (libcuda.so.1), no constructor of ours
  check_symbols.py alone LIBRARY SONAME        the same, and needs no library at all, no thread-local storage, no relocation
  check_symbols.py hot LIST ROOM=ARCHIVE...    object files named in LIST (ROOM/FILE) refer to nothing that may allocate,
                                               lock, print, read the environment, look symbols up or initialise lazily
"""
import pathlib
import re
import subprocess
import sys

NEWER_NAMES = "$ORIGIN/newer"
# Each is also a name of musl's libc, which has no ld-linux-x86-64.so.2.
PRELOAD_MAY_NEED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}

# Static initialisers that come with libraries linked in: libstdc++'s own, and Boost's page size (ipc/channel/map.cc).
KNOWN_INITIALISERS = {"eh_alloc.cc", "memory_resource.cc", "system_error.cc", "map.cc"}

# References that a hot-path object must not have, and the reasons (conventions, rule 15).
FORBIDDEN = [
    (r"(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup)", "allocates"),
    (r"_Zn[aw]\w*|_Zd[al]\w*", "allocates"),
    (r"pthread_(mutex|rwlock|cond|once|spin|create|key)\w*|__pthread_\w+|_ZNSt5mutex\w*|mtx_\w+", "locks"),
    (r"(f|s|sn|v|vf|vs|vsn|d)?printf(_chk)?|__\w*printf_chk|puts|fputs|fwrite|putchar|perror|strerror\w*", "prints"),
    (r"\w*raw_log\w*", "prints"),
    (r"(secure_)?getenv|setenv", "reads the environment"),
    (r"dl(sym|vsym|open|close|addr|info)", "looks symbols up"),
    (r"__tls_get_addr", "thread-local storage is not initial-exec"),
    (r"__cxa_guard_\w+|__cxa_thread_atexit\w*|__cxa_atexit", "static with a lazy initialiser or a destructor"),
    (r"__cxa_(throw|allocate_exception|begin_catch|rethrow)|_ZSt\d+__throw_\w+|_Unwind_Resume", "throws"),
    (r"_ZNKSt8function\w*|_ZNSt8function\w*|_ZSt25__throw_bad_function_callv", "std::function"),
    (r"_ZNSt7__cxx1112basic_string\w*|_ZNKSt7__cxx1112basic_string\w*", "std::string"),
    (r"(open|openat|close|read|write|writev|socket|connect|send|sendmsg|recv|recvmsg|poll|epoll_\w+|mmap|munmap|ioctl)(64)?",
     "system call other than a futex wake"),
    (r"(u?sleep|nanosleep|sched_yield)", "sleeps through a cancellation point"),
    (r"abort|exit|_exit|__assert_fail|_ZSt9terminatev", "ends the host program"),
]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exports(library, version_script):
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(version_script).read_text(), flags=re.S)
    listed = set(re.findall(r"^\s*(\w+);", re.sub(r"local:.*?}", "}", text, flags=re.S), re.M))
    symbols = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    real = {name.split("@")[0] for _, kind, name in symbols if kind != "A"}  # A: names of versions
    found = [f"exported but not listed: {name}" for name in sorted(real - listed)]
    found += [f"listed but not exported: {name}" for name in sorted(listed - real)]
    return found, f"{len(real)} exports"


def preload(library, soname="libcuda.so.1"):
    dynamic, headers = run("readelf", "-dW", library), run("readelf", "-lW", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    found = [f"needs {name}: a preload library must not bring libraries along" for name in sorted(needed - PRELOAD_MAY_NEED)]
    if re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) != [soname]:
        found.append(f"SONAME must be {soname}: that is how the loader finds it (design D2)")
    if "TEXTREL" in dynamic:
        found.append("has text relocations")
    if "BIND_NOW" not in dynamic and "NOW" not in dynamic:
        found.append("is not linked -z now: a lazy binding could run the loader inside a hook")
    if re.findall(r"(?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) not in ([], [NEWER_NAMES]):
        found.append(f"has a run path other than {NEWER_NAMES}, where cli/run/newer_names.cc puts what only the driver knows")
    if re.search(r"GNU_STACK\s.*RWE", headers):
        found.append("asks for an executable stack")
    # One entry is the compiler's own (frame_dummy). A stripped library cannot be looked at.
    symbols = run("nm", library)
    initialisers = set(re.findall(r" t _GLOBAL__sub_I_(\S+)", symbols))
    # Clang gives a file's only initialiser no name of the file: this one is Boost's, of the page size.
    if len(re.findall(r" t __cxx_global_var_init\n", symbols)) == 1 and "mapped_region16page_size_holder" in symbols:
        initialisers.add("map.cc")
    size = re.search(r"\(INIT_ARRAYSZ\)\s+(\d+)", dynamic)
    # On aarch64 libgcc has one, which asks for the processor's features.
    compilers_own = 1 + len(re.findall(r" t init_have_lse_atomics\n", symbols))
    constructors = int(size[1]) // 8 - compilers_own if size and symbols else 0
    if initialisers - KNOWN_INITIALISERS or constructors > len(initialisers):
        found.append(f"{constructors} constructors, {sorted(initialisers)}: nothing of ours may run at load (rule 19)")
    return found, f"needs {sorted(needed)}"


def alone(library, soname):
    found, _ = preload(library, soname)
    dynamic, headers = run("readelf", "-drW", library), run("readelf", "-lW", library)
    found += [f"needs {name}: it is loaded where nothing else is" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)]
    if re.search(r"^\s+TLS\s", headers, re.M):
        found.append("has thread-local storage")
    if re.search(r"\bR_(X86_64|AARCH64)_", dynamic):
        found.append("has relocations")
    return found, "needs nothing"


def hot(listing, *rooms):
    wanted = {line.strip() for line in pathlib.Path(listing).read_text().splitlines()
              if line.strip() and not line.startswith("#")}
    found, there, references = [], set(), 0
    for room, archive in (r.split("=", 1) for r in rooms):
        there |= {f"{room}/{member.removesuffix('.o')}" for member in run("ar", "t", archive).split()}
        for line in run("nm", "-A", "--undefined-only", archive).splitlines():
            member, symbol = re.match(r".*:(\S+)\.o:\s+\S\s+(\S+)", line).groups()
            name = f"{room}/{member}"
            if name not in wanted:
                continue
            references += 1
            for pattern, reason in FORBIDDEN:
                if re.fullmatch(pattern, symbol.split("@")[0]):
                    found.append(f"{name} refers to {symbol}: {reason}")
    found += [f"{name} is listed but in no archive" for name in sorted(wanted - there)]
    if not wanted:
        found.append(f"{listing} names no object file")
    return found, f"{len(wanted)} hot objects, {references} references"


def main():
    modes = {"exports": exports, "preload": preload, "alone": alone, "hot": hot}
    if len(sys.argv) < 3 or sys.argv[1] not in modes:
        print(__doc__)
        return 2
    found, summary = modes[sys.argv[1]](*sys.argv[2:])
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{sys.argv[1]}: {summary}, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
