# Build rules shared by all modules: flags, output folders, how a library and a test are declared.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

set(TESSERA_SANITIZE "" CACHE STRING "address (with undefined), thread, or fuzz (address, for libFuzzer); empty for none")

# -O3 buys this code nothing and costs a third more compile time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(TESSERA_SANITIZE)  # what is not instrumented is compiled as in a release build, so that ccache has it already
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO ${CMAKE_CXX_FLAGS_RELEASE})
endif()
option(TESSERA_DEVICE_TESTS "Register the tests that need a GPU" OFF)
option(TESSERA_WERROR "Warnings are errors" ON)
option(TESSERA_UNITY "Compile the files of a test program, and of some libraries, together: in two thirds of the time" ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths as seen from the build folder: what one build compiled, the next one finds, also in another clone.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

find_package(Threads REQUIRED)

# The toolkit: headers for every module that names driver types, nvcc for kernels/samples.
# CUDA_HOME wins, then the usual place, then what scripts/setup.sh has fetched.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH TESSERA_SOURCE_DIR)  # also where a part is a project of its own
if(NOT TESSERA_CUDA_ROOT)
  set(place /usr/local/cuda)
  if(DEFINED ENV{CUDA_HOME})
    set(place $ENV{CUDA_HOME})
  elseif(NOT EXISTS ${place}/bin/nvcc AND EXISTS ${TESSERA_SOURCE_DIR}/build/cuda)
    set(place ${TESSERA_SOURCE_DIR}/build/cuda)
  endif()
  set(TESSERA_CUDA_ROOT ${place} CACHE PATH "CUDA toolkit")
endif()
if(NOT EXISTS ${TESSERA_CUDA_ROOT}/include/cuda.h OR NOT EXISTS ${TESSERA_CUDA_ROOT}/bin/nvcc)
  message(FATAL_ERROR "CUDA toolkit 13 not found at ${TESSERA_CUDA_ROOT}: set CUDA_HOME to the "
                      "folder that holds include/cuda.h and bin/nvcc")
endif()
set(TESSERA_HAS_CUDNN OFF)  # which comes apart from the toolkit
if(EXISTS ${TESSERA_CUDA_ROOT}/include/cudnn.h)
  set(TESSERA_HAS_CUDNN ON)
endif()
set(TESSERA_NVCC ${TESSERA_CUDA_ROOT}/bin/nvcc)
# For programs, what their host code is compiled by, and what they are linked with. The toolkit's libraries are for the machine
# that builds: for another one the software GPU's take their place. Headers are the same, but nvcc looks for others there.
set(TESSERA_NVCC_HOST -ccbin ${CMAKE_CXX_COMPILER})
set(TESSERA_STUB_DRIVER ${TESSERA_CUDA_ROOT}/lib64/stubs/libcuda.so)
if(CMAKE_CROSSCOMPILING)
  list(APPEND TESSERA_NVCC_HOST -I${TESSERA_CUDA_ROOT}/include -isystem ${TESSERA_CUDA_ROOT}/include/cccl -Xcompiler --sysroot=${CMAKE_SYSROOT})
  set(TESSERA_STUB_DRIVER softgpu_driver)
endif()
add_library(tessera_cuda_headers INTERFACE)
target_include_directories(tessera_cuda_headers SYSTEM INTERFACE ${TESSERA_CUDA_ROOT}/include)

# Every target links this: warnings, include root, sanitizers.
add_library(tessera_options INTERFACE)
target_include_directories(tessera_options INTERFACE ${TESSERA_SOURCE_DIR})
target_compile_options(tessera_options INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(TESSERA_WERROR)
  target_compile_options(tessera_options INTERFACE -Werror)
endif()
# Collecting garbage in a compiler that is about to end costs a tenth of its time; without, it takes up to 700 MB.
set(TESSERA_COMPILE_FASTER)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(TESSERA_COMPILE_FASTER --param=ggc-min-heapsize=2000000)
endif()
# Tests are compiled more often than they run: with GCC, -Og takes three quarters of -O1's time (-O0 takes more). In the
# order that a sanitizer build has them, for ccache.
set(TESSERA_TEST_OPTIONS ${TESSERA_COMPILE_FASTER} -Og)
# Instrumented code needs line numbers, not variables. Under the address sanitizer GCC takes half of -O1's time for -O0; the
# interpreter, which must run fast, says -O2 itself.
set(TESSERA_INSTRUMENT -O1)
if(TESSERA_SANITIZE STREQUAL "address")
  set(TESSERA_INSTRUMENT -O0)
endif()
if(TESSERA_SANITIZE MATCHES "address|fuzz")
  list(APPEND TESSERA_INSTRUMENT -g1 -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined
                                 -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
  if(TESSERA_SANITIZE STREQUAL "fuzz")
    list(APPEND TESSERA_INSTRUMENT -fsanitize=fuzzer-no-link)
  endif()
elseif(TESSERA_SANITIZE STREQUAL "thread")
  # -Wno-tsan: the interpreter needs a fence, which the sanitizer does not model; nothing is synchronised by it alone.
  list(APPEND TESSERA_INSTRUMENT -g1 -UNDEBUG -fno-omit-frame-pointer -fsanitize=thread -Wno-tsan)
  add_link_options(-fsanitize=thread)
else()
  set(TESSERA_INSTRUMENT)
endif()
# Atomic additions and exchanges in one instruction: base/machine.h counts on it, and the audit library has no other form.
# Every Arm processor that NVIDIA sells beside a GPU of the last years has them.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  add_compile_options(-march=armv8.1-a)
endif()
add_compile_options(${TESSERA_INSTRUMENT})
add_compile_options(${TESSERA_COMPILE_FASTER})

add_custom_target(tests_asan)
add_custom_target(tests_tsan)
add_custom_target(tests_arm64)

# tessera_library(name [NOEXCEPT] SOURCES a.cc ... [LIBS ...])  static archive, position independent
function(tessera_library name)
  cmake_parse_arguments(ARG "NOEXCEPT" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC tessera_options ${ARG_LIBS})
  if(ARG_NOEXCEPT)
    target_compile_options(${name} PRIVATE -fno-exceptions)
  endif()
endfunction()

# tessera_unity(name [APART a.cc ...])  compiles its files ten together, in half of the time; some by themselves, because a
# local name of theirs is another's, too. Not what the preload library's launch path is made of: it is checked file by file.
function(tessera_unity name)
  cmake_parse_arguments(ARG "" "" "APART" ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE 10)
  if(ARG_APART)
    set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# tessera_not_instrumented(name [thread])  Compiles a target as in a release build under the address sanitizer, or under the thread
# sanitizer instead: then ccache has it already.
function(tessera_not_instrumented name)
  set(sanitizer ${ARGN})
  if(NOT sanitizer)
    set(sanitizer address)
  endif()
  if(TESSERA_SANITIZE STREQUAL sanitizer)
    get_target_property(options ${name} COMPILE_OPTIONS)
    list(REMOVE_ITEM options ${TESSERA_INSTRUMENT})
    set_target_properties(${name} PROPERTIES COMPILE_OPTIONS "${options}")
  endif()
endfunction()

# tessera_optimised(name ...)  Under the address sanitizer, too: what tests spend more time in than the compiler needs for it.
function(tessera_optimised)
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE $<$<STREQUAL:${TESSERA_SANITIZE},address>:-O1>)
  endforeach()
endfunction()

# tessera_timeout(name seconds)  A time that tells a hang, on any machine. Emulated, a program that starts others takes ten times as long.
function(tessera_timeout name seconds)
  if(CMAKE_CROSSCOMPILING)
    math(EXPR seconds "${seconds} * 10")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

# tessera_test(name LABELS unit [asan] [tsan] SOURCES a.cc [LIBS ...] [TIMEOUT s] [NOT_EMULATED Suite.Test:...])
# A GoogleTest program, one CTest.
# The labels asan and tsan put it into what scripts/test.sh builds and runs again under those sanitizers; arm64, which
# TESSERA_UNIT_LABELS of a folder gives to its unit tests, into what runs under emulation, but for the
# tests in NOT_EMULATED. Under the address sanitizer the libraries are instrumented, the test's own sources only with
# INSTRUMENTED: of headers, or where they ask for the sanitizer.
function(tessera_test name)
  cmake_parse_arguments(ARG "INSTRUMENTED" "TIMEOUT;NOT_EMULATED" "SOURCES;LIBS;LABELS;ENVIRONMENT" ${ARGN})
  find_package(GTest REQUIRED)
  if(unit IN_LIST ARG_LABELS)
    list(APPEND ARG_LABELS ${TESSERA_UNIT_LABELS})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${TESSERA_UNITY})
  if(NOT ARG_INSTRUMENTED)
    tessera_not_instrumented(${name})
  endif()
  target_compile_options(${name} PRIVATE ${TESSERA_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE tessera_options ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main
                                        Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  foreach(build asan tsan arm64)
    if(build IN_LIST ARG_LABELS)
      add_dependencies(tests_${build} ${name})
    endif()
  endforeach()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(CMAKE_CROSSCOMPILING AND ARG_NOT_EMULATED)
    list(APPEND ARG_ENVIRONMENT GTEST_FILTER=-${ARG_NOT_EMULATED})
  endif()
  tessera_timeout(${name} ${ARG_TIMEOUT})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}"
                                          # No test learns into, or reads, the files of who runs it; a
                                          # byte too far is an error.
                                          ENVIRONMENT "TESSERA_PROFILES=off;TESSERA_CACHE_MAX_MB=0;TESSERA_SOFTGPU_STRICT=1;${ARG_ENVIRONMENT}")
endfunction()

# tessera_take_turns(test ...)  Tests of several processes on the software GPU wait for each other (tests/integration/sharing/fixture.cc):
# CTest starts one at a time, and begins with these, as they take longest together.
function(tessera_take_turns)
  set_tests_properties(${ARGN} PROPERTIES RESOURCE_LOCK sharing COST 1000)
endfunction()
