# Stubs to link against an older glibc than this machine's: make_stubs.py makes them.

# tessera_stubs(VARIABLE 2.28)  the folder of the stubs of that glibc
function(tessera_stubs variable oldest)
  set(folder ${CMAKE_BINARY_DIR}/glibc-${oldest})
  set(sources ${CMAKE_SOURCE_DIR}/packaging/portable)
  execute_process(COMMAND env CC=${CMAKE_C_COMPILER} AR=${CMAKE_AR} ${sources}/make_stubs.py ${folder} ${oldest} COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources}/make_stubs.py ${sources}/fallbacks.c ${sources}/start.c)
  set(${variable} ${folder} PARENT_SCOPE)
endfunction()

# Libraries that are loaded into other people's programs run on every glibc on which NVIDIA's own do, in every build: what is
# installed, packaged or mounted into a container is the same file. The loader of musl takes them, too.
if(NOT TESSERA_SANITIZE)  # sanitizers bring libraries of this machine's glibc along
  tessera_stubs(TESSERA_PRELOAD_STUBS 2.17)
endif()
function(tessera_link_for_old_glibc library)
  if(TESSERA_PRELOAD_STUBS)
    # Before those of TESSERA_PORTABLE; -L for clang. Before glibc 2.34 threads and dlopen were libraries of their own.
    target_link_options(${library} BEFORE PRIVATE -B${TESSERA_PRELOAD_STUBS}/ -L${TESSERA_PRELOAD_STUBS} -Wl,--push-state,--no-as-needed -lpthread -ldl -Wl,--pop-state)
  endif()
  target_link_options(${library} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()
