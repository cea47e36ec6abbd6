// The library that a function is in, for those of its functions that only read what the program gave it. Slow; any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::library {

// Functions that are looked up once, when they are first needed. Threads that come meanwhile do not wait, and go without.
class OnceFound {
 public:
  // `find`: slow; says whether it has found what it looks for, which is constant from then on.
  template <class Find>
  bool have(const Find& find) {
    if (state_.load(std::memory_order_acquire) == kFound) return true;  // pairs with look()
    return look([](const void* context) { return (*static_cast<const Find*>(context))(); }, &find);
  }

 private:
  enum State : uint32_t { kNotLooked, kLooking, kFound, kNotFound };
  bool look(bool (*find)(const void* context), const void* context);

  std::atomic<uint32_t> state_{kNotLooked};
};

// For symbol_of(); also where the library was opened under a path or in a namespace of its own. It stays loaded. Null: there is none.
void* library_of(const void* function);

// The library that the loader has under this name, for symbol_of(). It stays loaded. Null: there is none.
void* opened_library(const char* soname);

// Asked of the loader itself, whoever overrides dlsym. Null: there is none, or no library.
void* symbol_of(void* library, const char* symbol);

// False: there is none.
template <class Pointer>
bool find_function(void* library, const char* symbol, Pointer& out) {
  out = reinterpret_cast<Pointer>(symbol_of(library, symbol));
  return out;
}

}  // namespace tessera::library
