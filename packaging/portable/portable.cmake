# TESSERA_PORTABLE: programs and libraries that need nothing but glibc 2.28 or newer. The C++ runtime and all libraries are
# linked in; make_stubs.py says how the versions of glibc's symbols are kept old.
tessera_stubs(TESSERA_PORTABLE_STUBS 2.28)

# Before glibc 2.34 threads and dlopen were libraries of their own: everything names them.
set(TESSERA_PORTABLE_LINK -B${TESSERA_PORTABLE_STUBS}/ -static-libstdc++ -static-libgcc)
set(TESSERA_PORTABLE_NEEDED -Wl,--push-state,--no-as-needed -lpthread -ldl -lrt -Wl,--pop-state)
add_link_options(${TESSERA_PORTABLE_LINK} ${TESSERA_PORTABLE_NEEDED})
# nvcc reads commas itself.
list(TRANSFORM TESSERA_PORTABLE_LINK PREPEND -Xcompiler= OUTPUT_VARIABLE TESSERA_PORTABLE_NVCC)
list(APPEND TESSERA_PORTABLE_NVCC -Xlinker --no-as-needed -lpthread -ldl -lrt -Xlinker --as-needed)

# Libraries: archives, or headers alone (find/).
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(ZLIB_USE_STATIC_LIBS ON)
list(PREPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/packaging/portable/find)
find_library(TESSERA_ZLIB NAMES z REQUIRED)
string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " ${TESSERA_ZLIB}")  # of libelf.a
