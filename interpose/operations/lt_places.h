// Finds where cublasLt keeps the attributes of its descriptors: found out with its own setters, once. From then on they are read there,
// which takes a load and not a call (10 ns). What has no such place is asked for.
//
// A place is where a setter, and nothing else, writes what it is given, and the getter says the same. Any thread; nothing
// allocates or waits. Descriptors are only read: storage of the program, or what the library made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "interpose/operations/lt_attributes.h"

namespace tessera::library {

inline constexpr uint32_t kNoPlace = UINT32_MAX;  // it is asked for

// Places in a kind of descriptor, by the numbers of its attributes.
template <class Attribute, uint32_t kAttributes>
struct AttributeReader {
  GetAttribute get;
  uint32_t places[kAttributes];  // bytes from the start of the descriptor

  // Reads an attribute that has a place.
  template <class T>
  T at_place(const void* descriptor, Attribute attribute) const {
    T value;
    memcpy(&value, static_cast<const char*>(descriptor) + places[attribute], sizeof value);
    return value;
  }
  template <class T>
  bool read(const void* descriptor, Attribute attribute, T* to) const {
    if (places[attribute] == kNoPlace) return ask(descriptor, attribute, to, sizeof *to);
    *to = at_place<T>(descriptor, attribute);
    return true;
  }
  bool ask(const void* descriptor, Attribute attribute, void* to, size_t bytes) const {
    size_t written = 0;
    return get(descriptor, attribute, to, bytes, &written) == 0 && written == bytes;
  }
};

struct LtPlaces {
  AttributeReader<LayoutAttribute, kLayoutBatch + 1> layout;
  AttributeReader<MatmulAttribute, kOutScaleModeD + 1> matmul;
  bool have_all;  // that lt.cc reads
};

// Fills in the places of this library. False: it lacks something.
bool find_places(void* library, LtPlaces* out);

}  // namespace tessera::library
