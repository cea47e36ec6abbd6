#include "interpose/operations/cudnn_graphs.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <span>

#include "base/errno_guard.h"
#include "interpose/operations/cudnn.h"
#include "interpose/operations/loaded_library.h"
#include "operations/graph.h"

namespace tessera::library {
namespace {

using operations::GraphAttribute;
using operations::GraphOperation;
using operations::GraphTensor;
constexpr auto kRelaxed = std::memory_order_relaxed;

// ---- numbers of cudnn_graph.h

enum AttributeType : int {
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kResampleMode = 21,
  kFraction = 26,
  kNormMode = 27,
  kNormPhase = 28
};
enum Attribute : int {
  kModeOfPointwise = 0,
  kResultsOfHeuristic = 202,
  kGraphOfHeuristic = 201,
  kEngineOfConfiguration = 300,
  kConfigurationOfPlan = 401,
  kPointwiseDescriptor = 750,
  kOperationsOfGraph = 801,
  kTensorType = 901,
  kTensorDims = 902,
  kTensorVector = 904,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kGraphOfEngine = 1300,
  kOperatorOfReduction = 1600,
  kReductionDescriptor = 1612,
  kModeOfResample = 1700,
  kWindowOfResample = 1706,
  kResampleDescriptor = 1716,
  kResampleGradientDescriptor = 1725,
  kModeOfNormalisation = 2000,
  kPhaseOfNormalisation = 2001,
  kModeOfNormalisationGradient = 2100,
};

// ---- the library that reads descriptors

using GetAttribute = int (*)(const void* descriptor, int attribute, int type, int64_t most, int64_t* n,
                             void* to);
constinit std::atomic<GetAttribute> g_get{nullptr};

[[gnu::noinline]] GetAttribute look_for_getter() {
  const base::ErrnoGuard keep_errno;
  void* const library = cudnn_library();
  const auto found = reinterpret_cast<GetAttribute>(symbol_of(library, "cudnnBackendGetAttribute"));
  g_get.store(found, kRelaxed);  // code, which does not change
  return found;
}

// Up to `most` values; how many there are, below 0: they cannot be read.
template <class T>
int64_t read(const void* descriptor, int attribute, AttributeType type, std::span<T> to) {
  GetAttribute get = g_get.load(kRelaxed);
  if (!get) get = look_for_getter();
  int64_t n = 0;
  if (!get || get(descriptor, attribute, type, int64_t(to.size()), &n, to.data()) != 0) return -1;
  return n;
}
template <class T>
bool read_one(const void* descriptor, int attribute, AttributeType type, T* to) {
  return read(descriptor, attribute, type, std::span<T>(to, 1)) == 1;
}

bool read_tensor(const void* tensor, GraphTensor* out) {
  int type = -1;
  bool is_virtual = false, is_by_value = false;
  const int64_t n = read(tensor, kTensorDims, kInt64, std::span<int64_t>(out->dims));
  if (n < 1 || n > int64_t(operations::kMostGraphDims) || !read_one(tensor, kTensorType, kDataType, &type) ||
      !read_one(tensor, kTensorId, kInt64, &out->id) ||
      !read_one(tensor, kTensorVector, kInt64, &out->vector) ||
      !read_one(tensor, kTensorIsVirtual, kBoolean, &is_virtual) ||
      !read_one(tensor, kTensorIsByValue, kBoolean, &is_by_value))
    return false;
  out->n_dims = uint32_t(n);
  out->type = operations::type_of_cudnn(type);
  out->in_memory = !is_virtual && !is_by_value;
  return true;
}

// ---- tables by the address of a descriptor

template <class Value, uint32_t kSlots>
class Table {
 public:
  // Under the lock, or of a descriptor that nobody changes meanwhile. Null: not there.
  Value* find(const void* key) {
    for (uint32_t i = 0, at = place_of(key); i < kProbes; i++, at = (at + 1) % kSlots)
      if (slots_[at].key.load(std::memory_order_acquire) == key)
        return &slots_[at].value;  // pairs with put()
    return nullptr;
  }
  // Under the lock. Null: no room.
  Value* put(const void* key, const Value& value) {
    if (Value* found = find(key)) {
      *found = value;
      return found;
    }
    for (uint32_t i = 0, at = place_of(key); i < kProbes; i++, at = (at + 1) % kSlots) {
      Slot& slot = slots_[at];
      if (slot.key.load(kRelaxed)) continue;
      new (&slot.value) Value(value);
      slot.key.store(key, std::memory_order_release);  // pairs with find()
      return &slot.value;
    }
    return nullptr;
  }
  void remove(const void* key) {
    for (uint32_t i = 0, at = place_of(key); i < kProbes; i++, at = (at + 1) % kSlots)
      if (slots_[at].key.load(kRelaxed) == key) slots_[at].key.store(nullptr, kRelaxed);
  }

 private:
  static constexpr uint32_t kProbes = 32;  // all are looked at: slots in between may have been given back
  // No value is made before there is one, so that the table takes no room in the file and no memory that nobody uses.
  struct Slot {
    constexpr Slot() : none(0) {}
    std::atomic<const void*> key{nullptr};
    union {
      char none;
      Value value;
    };
  };
  static uint32_t place_of(const void* key) {
    return uint32_t((reinterpret_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u >> 32) * kSlots >> 32);
  }
  Slot slots_[kSlots];
};

// A value that an operation's own descriptor holds.
struct Setting {
  int32_t mode = -1;
  operations::Count window;
};

// Operations live while a graph is made of them, sums as long as plans do: frameworks keep thousands.
constinit Table<GraphOperation, 1024> g_operations;
constinit Table<Setting, 1024> g_settings;
constinit Table<Operation, 8192> g_sums;
constinit std::atomic_flag g_lock;  // guards them all
// A change was missed: from then on nothing is known of any graph.
constinit std::atomic<bool> g_missed{false};

class Locked {
 public:
  Locked() {
    constexpr int kTries = 10'000;  // some milliseconds
    for (int i = 0; i < kTries && !has_; i++) {
      has_ = !g_lock.test_and_set(std::memory_order_acquire);  // pairs with the release below
      if (!has_) sched_yield();
    }
    if (!has_) g_missed.store(true, kRelaxed);
  }
  ~Locked() {
    if (has_) g_lock.clear(std::memory_order_release);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  explicit operator bool() const { return has_; }

 private:
  bool has_ = false;
};

// ---- operations

// Changes what a table has of a descriptor, whatever that was before.
template <class Value, uint32_t kSlots, class Change>
void change_in(Table<Value, kSlots>& table, const void* descriptor, const Change& to) {
  const Locked lock;
  if (!lock) return;
  Value* value = table.find(descriptor);
  if (!value) value = table.put(descriptor, Value());
  if (value) to(*value);
}
template <class Change>
void change(const void* descriptor, const Change& to) {
  change_in(g_operations, descriptor, to);
}

void forget(GraphOperation& operation, const GraphAttribute* attribute) {
  auto* const end = std::remove_if(operation.tensors, operation.tensors + operation.n_tensors,
                                   [&](const auto& given) { return given.attribute == attribute; });
  operation.n_tensors = uint32_t(end - operation.tensors);
}

void set_tensors(const void* descriptor, const GraphAttribute& attribute,
                 std::span<const void* const> tensors) {
  GraphTensor read[GraphOperation::kMostTensors];
  const bool fits = tensors.size() <= std::size(read);
  bool all = fits;
  for (size_t i = 0; fits && i < tensors.size(); i++) all = read_tensor(tensors[i], &read[i]) && all;
  change(descriptor, [&](GraphOperation& operation) {
    operation.step = attribute.step;
    forget(operation, &attribute);
    all = all && operation.n_tensors + tensors.size() <= GraphOperation::kMostTensors;
    operation.is_known = operation.is_known && all;
    for (size_t i = 0; all && i < tensors.size(); i++)
      operation.tensors[operation.n_tensors++] = {&attribute, read[i]};
  });
}

// The library does not tell what a pointwise, reduction or pooling descriptor holds: it is kept when it is set.
template <class Change>
void change_setting(const void* own, const Change& to) {
  change_in(g_settings, own, to);
}

// An operation is given its own descriptor.
void use_setting(const void* descriptor, const void* own) {
  change(descriptor, [&](GraphOperation& operation) {
    const Setting* setting = g_settings.find(own);
    operation.is_known = operation.is_known && setting;
    if (!setting) return;
    operation.mode = setting->mode;
    operation.window = setting->window;
  });
}

// The area of a window: its sides are numbers, or fractions as pairs of numbers.
operations::Count area_of(int type, size_t n, const int64_t* numbers) {
  operations::Count area{1};
  for (size_t i = 0; i < n; i++) {
    const int64_t side =
        type == kFraction ? numbers[2 * i] / std::max<int64_t>(numbers[2 * i + 1], 1) : numbers[i];
    area = area * operations::Count{uint64_t(std::max<int64_t>(side, 0))};
  }
  return area;
}

// ---- sums

void set_graph(const void* graph, std::span<const void* const> operations) {
  constexpr size_t kMost = 64;
  const GraphOperation* found[kMost];
  const Locked lock;
  if (!lock) return;
  g_sums.remove(graph);
  if (operations.size() > kMost) return;
  for (size_t i = 0; i < operations.size(); i++) found[i] = g_operations.find(operations[i]);
  const auto sum = operations::graph_cost({found, operations.size()});
  if (!sum) return;
  Operation out{};
  out.entry = Entry::cudnnBackendExecute;
  out.shape = sum->shape;
  out.types = sum->types;
  // Products of single precision go through TF32, unless the program leaves such engines out: which is not known here.
  out.computed_as = sum->multiplies && sum->types.a == Type::kF32 ? Type::kTF32 : sum->types.a;
  out.cost = sum->cost;
  g_sums.put(graph, out);
}

// `from` says what `to` is for.
void hand_on(const void* from, const void* to) {
  const Locked lock;
  if (!lock || !from || !to) return;
  if (const Operation* sum = g_sums.find(from))
    g_sums.put(to, Operation(*sum));
  else
    g_sums.remove(to);
}

std::span<const void* const> descriptors_of(int type, int64_t n, const void* elements) {
  if (type != kDescriptor || !elements || n <= 0) return {};
  return {static_cast<const void* const*>(elements), size_t(n)};
}

}  // namespace

void graph_descriptor_made(void** descriptor) {
  if (descriptor) graph_descriptor_goes(*descriptor);  // whatever had this address before
}

void graph_descriptor_goes(const void* descriptor) {
  if (!descriptor) return;
  const Locked lock;
  if (!lock) return;
  g_operations.remove(descriptor);
  g_settings.remove(descriptor);
  g_sums.remove(descriptor);
}

void graph_attribute_set(const void* descriptor, int attribute, int type, int64_t n, const void* elements) {
  const auto given = descriptors_of(type, n, elements);
  if (const GraphAttribute* tensor = operations::find_graph_attribute(attribute)) {
    if (!given.empty()) set_tensors(descriptor, *tensor, given);
    return;
  }
  const auto number = [&] { return *static_cast<const int*>(elements); };
  const bool has_number = n == 1 && elements;
  switch (attribute) {
    case kModeOfPointwise:
    case kOperatorOfReduction:
    case kModeOfResample:
      if (has_number && (type == kPointwiseMode || type == kReductionOperator || type == kResampleMode))
        change_setting(descriptor, [&](Setting& setting) { setting.mode = number(); });
      return;
    case kWindowOfResample:
      if ((type == kInt64 || type == kFraction) && elements && n > 0 &&
          n <= int64_t(operations::kMostGraphDims))
        change_setting(descriptor, [&](Setting& setting) {
          setting.window = area_of(type, size_t(n), static_cast<const int64_t*>(elements));
        });
      return;
    case kPointwiseDescriptor:
    case kReductionDescriptor:
    case kResampleDescriptor:
    case kResampleGradientDescriptor:
      if (!given.empty()) use_setting(descriptor, given[0]);
      return;
    case kModeOfNormalisation:
    case kModeOfNormalisationGradient:
      if (has_number && type == kNormMode)
        change(descriptor, [&](GraphOperation& operation) { operation.mode = number(); });
      return;
    case kPhaseOfNormalisation:
      if (has_number && type == kNormPhase)
        change(descriptor, [&](GraphOperation& operation) { operation.phase = number(); });
      return;
    case kOperationsOfGraph:
      if (!given.empty()) set_graph(descriptor, given);
      return;
    case kGraphOfHeuristic:
    case kGraphOfEngine:
    case kEngineOfConfiguration:
    case kConfigurationOfPlan:
      if (!given.empty()) hand_on(given[0], descriptor);
      return;
    default:
      return;
  }
}

void graph_attribute_read(const void* descriptor, int attribute, int type, int64_t most, const int64_t* n,
                          const void* elements) {
  if (attribute != kResultsOfHeuristic && attribute != kGraphOfEngine &&
      attribute != kEngineOfConfiguration && attribute != kConfigurationOfPlan)
    return;
  for (const void* to : descriptors_of(type, n ? std::min(*n, most) : most, elements))
    hand_on(descriptor, to);
}

bool describe(const GraphPlan& what, Operation* out) {
  if (!what.plan || g_missed.load(kRelaxed)) return false;
  const Operation* sum = g_sums.find(what.plan);
  if (!sum) return false;
  *out = *sum;
  return true;
}

}  // namespace tessera::library
