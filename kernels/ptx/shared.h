// Storage of the IR: a list and a box whose copies share one block of memory until one of them is written
// (copy on write). Used by ir.h. To the outside both are values: a change through one copy is never seen
// through another. A pointer each; nothing is allocated for an empty one. Copies may be made, read and
// dropped by several threads at once; one and the same object by one writer only. References and iterators
// end when their list or box is written.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace tessera::ptx {

// A sequence for few elements: exactly as large as its contents, so push_back moves all of them.
template <class T>
class List {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  List() = default;
  List(std::initializer_list<T> items) { assign(items.begin(), items.end()); }
  List(const List& other) : block_(other.block_) {
    // Relaxed: who copies holds a reference already, so the count cannot reach zero meanwhile.
    if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  List(List&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  List& operator=(List other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~List() { drop(); }

  size_t size() const { return block_ ? block_->size : 0; }
  bool empty() const { return block_ == nullptr; }
  const T* begin() const { return block_ ? items(block_) : nullptr; }
  const T* end() const { return begin() + size(); }
  const T& operator[](size_t n) const { return begin()[n]; }
  const T& at(size_t n) const { return begin()[n]; }
  const T& front() const { return begin()[0]; }
  const T& back() const { return begin()[size() - 1]; }

  // These make the list the only owner of its elements.
  T* begin() {
    if (block_ && !is_only_owner()) assign(std::as_const(*this).begin(), std::as_const(*this).end());
    return block_ ? items(block_) : nullptr;
  }
  T* end() {
    T* const first = begin();
    return first + size();
  }
  T& operator[](size_t n) { return begin()[n]; }
  T& back() { return begin()[size() - 1]; }

  template <class It>
  void assign(It first, It last) {
    Block* const block = allocate(static_cast<size_t>(last - first));
    if (block) std::uninitialized_copy(first, last, items(block));
    drop();
    block_ = block;
  }
  void push_back(T item) {
    const size_t n = size();
    Block* const block = allocate(n + 1);
    T* const from = begin();
    std::uninitialized_move(from, from + n, items(block));
    new (items(block) + n) T(std::move(item));
    drop();
    block_ = block;
  }
  void clear() { *this = List(); }
  void pop_back() {
    T* const first = begin();
    List shorter;
    shorter.assign(std::move_iterator(first), std::move_iterator(first + size() - 1));
    *this = std::move(shorter);
  }

  friend bool operator==(const List& a, std::span<const T> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  struct Block {
    std::atomic<uint32_t> refs;  // lists that share it
    uint32_t size;               // elements behind this header; never 0
  };

  static T* items(Block* block) { return reinterpret_cast<T*>(block + 1); }
  static Block* allocate(size_t n) {  // elements not yet constructed; nullptr for none
    static_assert(alignof(T) <= sizeof(Block));
    if (n == 0) return nullptr;
    return new (::operator new(sizeof(Block) + n * sizeof(T))) Block{{1}, static_cast<uint32_t>(n)};
  }
  // Acquire: pairs with the release of drop() elsewhere, whose reads come before our writes.
  bool is_only_owner() const { return block_->refs.load(std::memory_order_acquire) == 1; }
  void drop() {
    if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::destroy_n(items(block_), block_->size);
      block_->~Block();
      ::operator delete(block_);
    }
  }

  Block* block_ = nullptr;
};

// One T for what few objects have; reads as T() until edit() is called.
template <class T>
class Box {
 public:
  Box() = default;
  Box(T value) : node_(new Node{{1}, std::move(value)}) {}
  Box(const Box& other) : node_(other.node_) {
    if (node_) node_->refs.fetch_add(1, std::memory_order_relaxed);  // as in List
  }
  Box(Box&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  Box& operator=(Box other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~Box() {
    if (node_ && node_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete node_;
  }

  bool empty() const { return node_ == nullptr; }
  const T& operator*() const { return node_ ? node_->value : nothing(); }
  const T* operator->() const { return &**this; }
  operator const T&() const { return **this; }

  T& edit() {  // the only owner's; acquire as in List
    if (!node_ || node_->refs.load(std::memory_order_acquire) != 1) *this = Box(T(**this));
    return node_->value;
  }

 private:
  struct Node {
    std::atomic<uint32_t> refs;  // boxes that share it
    T value;
  };
  static const T& nothing() {  // never destroyed: a module may be read while the process ends
    alignas(T) static std::byte storage[sizeof(T)];
    static const T* const object = new (storage) T();
    return *object;
  }

  Node* node_ = nullptr;
};

}  // namespace tessera::ptx
