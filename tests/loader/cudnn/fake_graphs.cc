// Graphs of the fake cuDNN: descriptors are what was put into them. A heuristic has as many configurations as are asked for.
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum : int { kBadParameter = 2000, kNotFinalized = 2004 };
enum : int { kDescriptor = 15, kResultsOfHeuristic = 202 };
constexpr size_t kElementBytes[32] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4,  4, 4, 4, 4, 8,
                                      4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16, 4, 4, 4, 4};

struct Attribute {
  int type;
  std::vector<char> bytes;
};
struct Descriptor {
  bool is_final = false;
  std::map<int, Attribute> attributes;
};
Descriptor& of(void* descriptor) {
  return *static_cast<Descriptor*>(descriptor);
}

}  // namespace

TS_EXPORT int cudnnBackendCreateDescriptor(int, void** descriptor) {
  if (!descriptor) return kBadParameter;
  *descriptor = new Descriptor;
  return 0;
}
TS_EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
  if (!descriptor) return kBadParameter;
  delete &of(descriptor);
  return 0;
}
TS_EXPORT int cudnnBackendFinalize(void* descriptor) {
  if (!descriptor) return kBadParameter;
  of(descriptor).is_final = true;
  return 0;
}
TS_EXPORT int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t n,
                                       const void* elements) {
  if (!descriptor || of(descriptor).is_final || !elements || n <= 0 || type < 0 || type > 30)
    return kBadParameter;
  const char* const bytes = static_cast<const char*>(elements);
  of(descriptor).attributes[attribute] = {type, {bytes, bytes + size_t(n) * kElementBytes[type]}};
  return 0;
}
TS_EXPORT int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, int64_t most, int64_t* n,
                                       void* elements) {
  if (!descriptor || type < 0 || type > 30) return kBadParameter;
  if (!of(descriptor).is_final) return kNotFinalized;
  if (attribute == kResultsOfHeuristic) {
    *n = most;
    return 0;
  }
  static const std::map<int, Attribute> kDefaults = {
      {904, {3, {1, 0, 0, 0, 0, 0, 0, 0}}}, {907, {2, {0}}}, {908, {2, {0}}}};
  const auto& own = of(descriptor).attributes;
  auto found = own.find(attribute);
  if (found == own.end() && (found = kDefaults.find(attribute)) == kDefaults.end()) return kBadParameter;
  if (found->second.type != type) return kBadParameter;
  const auto& bytes = found->second.bytes;
  *n = int64_t(bytes.size() / kElementBytes[type]);
  if (!elements || most <= 0) return 0;
  if (type == kDescriptor) {  // what they hold is copied
    Descriptor *from = nullptr, *to = *static_cast<Descriptor**>(elements);
    memcpy(&from, bytes.data(), sizeof from);
    *to = *from;
    return 0;
  }
  memcpy(elements, bytes.data(), std::min(bytes.size(), size_t(most) * kElementBytes[type]));
  return 0;
}
TS_EXPORT int cudnnBackendInitialize(void*) {
  return 0;
}
