// Calls of every function of the fake library, with arguments that are told by their place alone.
#pragma once

#include <sys/mman.h>

#include <cstdio>
#include <type_traits>
#include <utility>

#include "tests/loader/cublas_types.h"

namespace loader {

// All pointers of arguments point here: the same place in every run, filled with the number 3.
inline constexpr uint64_t kPage = 0x3000'0000'0000;
inline bool make_page() {
  void* page = mmap(reinterpret_cast<void*>(kPage), 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page != reinterpret_cast<void*>(kPage)) return false;
  for (int i = 0; i < 512; i++) static_cast<uint64_t*>(page)[i] = 3;
  return true;
}

// The value of modes (sides, transposes); below 0: told by their place, like all others.
inline int g_mode = -1;

// The i-th argument, from 0.
template <class T>
T argument(int i) {
  const int number = 3 + i;
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(kPage + 64 * uint64_t(i));
  else if constexpr (std::is_same_v<T, cudaDataType>)
    return static_cast<T>(2);  // CUDA_R_16F
  else if constexpr (std::is_enum_v<T>)
    return static_cast<T>(g_mode < 0 ? number : g_mode);
  else
    return static_cast<T>(number);
}

template <class... T, int... i>
int call_each(int (*function)(T...), std::integer_sequence<int, i...>) {
  return function(argument<T>(i)...);
}
template <class... T>
int call(int (*function)(T...)) {
  return call_each(function, std::make_integer_sequence<int, sizeof...(T)>());
}

}  // namespace loader
