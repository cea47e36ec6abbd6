#include "kernels/slice/lookback.h"

#include <algorithm>

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;

constexpr int64_t kFar = int64_t{1} << 60;  // stands for infinity
constexpr uint8_t kMaxUpdates = 3;
constexpr size_t kMaxTerms = 6, kMaxWork = 5'000'000;  // instructions looked at

// Quantities of a thread, never negative and below a block's 1,024 threads; then those of the block and the
// grid; then what else the function names.
enum : Symbol {
  kTidX = 1,
  kTidY,
  kTidZ,
  kLane,
  kBlockX,
  kBlockY,
  kGridX,
  kGridY,
  kBlockRow,  // %ctaid.x * %nctaid.y: with %ctaid.y added, the number of a block where y is fastest
  kFirstNamed
};
constexpr int64_t kMaxThread = 1023;
constexpr struct {
  Name name, suffix;
  Symbol symbol;
} kSpecials[] = {{"%tid", ".x", kTidX},     {"%tid", ".y", kTidY},     {"%tid", ".z", kTidZ},
                 {"%laneid", "", kLane},    {"%ctaid", ".x", kBlockX}, {"%ctaid", ".y", kBlockY},
                 {"%nctaid", ".x", kGridX}, {"%nctaid", ".y", kGridY}};

bool is_thread(Symbol s) {
  return s <= kLane;
}

Form any() {
  Form f;
  f.kind = Form::Kind::kAny;
  return f;
}
Form between(int64_t low, int64_t high) {
  Form f;
  f.kind = Form::Kind::kSum;
  f.low = std::clamp(low, -kFar, kFar);
  f.high = std::clamp(high, -kFar, kFar);
  return f;
}
Form of(Symbol s) {
  Form f = between(0, 0);
  f.terms.push_back({s, 1});
  return f;
}
bool is_sum(const Form& f) {
  return f.kind == Form::Kind::kSum;
}
// Unset if one of them is, so that a pass may wait for what comes later.
Form unknown(const Form& a, const Form& b) {
  return a.kind == Form::Kind::kUnset || b.kind == Form::Kind::kUnset ? Form{} : any();
}

int64_t times(int64_t bound, int64_t factor) {
  int64_t product = 0;
  if (bound == kFar || bound == -kFar || __builtin_mul_overflow(bound, factor, &product))
    return factor == 0 ? 0 : (bound > 0) == (factor > 0) ? kFar : -kFar;
  return std::clamp(product, -kFar, kFar);
}
// Infinity stays what it is, whatever is added.
int64_t plus(int64_t a, int64_t b) {
  return std::abs(a) == kFar ? a : std::abs(b) == kFar ? b : std::clamp(a + b, -kFar, kFar);
}

Form scaled(const Form& f, int64_t factor) {
  if (!is_sum(f)) return f;
  Form r = between(times(f.low, factor), times(f.high, factor));
  if (r.low > r.high) std::swap(r.low, r.high);
  for (const Term& t : f.terms) {
    int64_t product = 0;
    if (__builtin_mul_overflow(t.factor, factor, &product)) return any();
    if (product != 0) r.terms.push_back({t.symbol, product});
  }
  return r;
}

Form added(const Form& a, const Form& b) {
  if (!is_sum(a) || !is_sum(b)) return unknown(a, b);
  Form r = between(plus(a.low, b.low), plus(a.high, b.high));
  auto x = a.terms.begin(), y = b.terms.begin();
  while (x != a.terms.end() || y != b.terms.end()) {
    if (y == b.terms.end() || (x != a.terms.end() && x->symbol < y->symbol)) {
      r.terms.push_back(*x++);
    } else if (x == a.terms.end() || y->symbol < x->symbol) {
      r.terms.push_back(*y++);
    } else {
      Term t{x->symbol, 0};
      if (__builtin_add_overflow(x++->factor, y++->factor, &t.factor)) return any();
      if (t.factor != 0) r.terms.push_back(t);
    }
  }
  return r.terms.size() > kMaxTerms ? any() : r;
}

bool is_just(const Form& f, Symbol s) {
  return is_sum(f) && f.low == 0 && f.high == 0 && f.terms == std::vector<Term>{{s, 1}};
}

// The form of its value in any thread of the block.
Form of_any_thread(Form f) {
  if (!is_sum(f)) return f;
  Form r = between(f.low, f.high);
  for (const Term& t : f.terms)
    if (!is_thread(t.symbol))
      r.terms.push_back(t);
    else
      (t.factor < 0 ? r.low : r.high) = plus(t.factor < 0 ? r.low : r.high, times(t.factor, kMaxThread));
  return r;
}

const int64_t* constant(const Form& f) {
  return is_sum(f) && f.terms.empty() && f.low == f.high && std::abs(f.low) != kFar ? &f.low : nullptr;
}
Form product(const Form& a, const Form& b) {
  if ((is_just(a, kBlockX) && is_just(b, kGridY)) || (is_just(a, kGridY) && is_just(b, kBlockX)))
    return of(kBlockRow);
  const int64_t* c = constant(b);
  return c ? scaled(a, *c) : (c = constant(a)) ? scaled(b, *c) : unknown(a, b);
}
Form shifted(const Form& a, const Form& b) {
  const int64_t* c = constant(b);
  return c && *c >= 0 && *c < 32 ? scaled(a, int64_t{1} << *c) : unknown(a, b);
}
// With a literal that is not negative, what remains is between 0 and that.
Form masked(const Form& a, const Form& b) {
  const int64_t *x = constant(a), *y = constant(b), *mask = y ? y : x;
  return mask && *mask >= 0 ? between(0, *mask) : unknown(a, b);
}

// A store that blocks which poll will see. An atomic that adds 0 is a way to read.
bool publishes(const Instruction& i) {
  if (i.opcode == "atom" || i.opcode == "red") {
    const Operand* last = i.operands.empty() ? nullptr : &i.operands.back();
    return !i.has("add") || !last || last->kind != Operand::Kind::kInteger || last->bits != 0;
  }
  constexpr Name kStrong[] = {"volatile", "relaxed", "release", "mmio", "wt", "cg"};
  return i.opcode == "st" &&
         std::any_of(std::begin(kStrong), std::end(kStrong), [&](Name m) { return i.has(m); });
}

// Conversions that keep a number that fits, as sums are taken to.
bool keeps_value(const Instruction& cvt) {
  auto wide = [&](unsigned nth) {
    const ptx::Type t = cvt.type(nth);
    return t == ptx::Type::kU32 || t == ptx::Type::kS32 || t == ptx::Type::kU64 || t == ptx::Type::kS64;
  };
  return wide(0) && wide(1);
}

using Make = Form (*)(const Form& a, const Form& b, const Form& c);
constexpr struct {
  Name opcode;
  Make make;
} kArithmetic[] = {
    {"mov", [](const Form& a, const Form&, const Form&) { return a; }},
    {"cvt", [](const Form& a, const Form&, const Form&) { return a; }},
    {"cvta", [](const Form& a, const Form&, const Form&) { return a; }},
    {"shfl", [](const Form& a, const Form&, const Form&) { return of_any_thread(a); }},
    {"neg", [](const Form& a, const Form&, const Form&) { return scaled(a, -1); }},
    {"not", [](const Form& a, const Form&, const Form&) { return added(scaled(a, -1), between(-1, -1)); }},
    {"add", [](const Form& a, const Form& b, const Form&) { return added(a, b); }},
    {"sub", [](const Form& a, const Form& b, const Form&) { return added(a, scaled(b, -1)); }},
    {"mul", [](const Form& a, const Form& b, const Form&) { return product(a, b); }},
    {"mad", [](const Form& a, const Form& b, const Form& c) { return added(product(a, b), c); }},
    {"shl", [](const Form& a, const Form& b, const Form&) { return shifted(a, b); }},
    {"and", [](const Form& a, const Form& b, const Form&) { return masked(a, b); }},
};

}  // namespace

LookBack::LookBack(const Flow& flow, const OwnAddresses& own) : flow_(flow), forms_(flow.n_objects) {
  size_t work = 0;
  for (Object o : flow.given) forms_[o] = any();
  do {
    changed_ = false;
    work += flow.nodes.size();
    for (const Node& node : flow.nodes) {
      store_shared(node);
      const Form value = transfer(node);
      for (Object o : flow.writes(node))
        if (o >= kFirstRegister) changed_ |= merge(&forms_[o], value);
    }
  } while (changed_ && work < kMaxWork);
  if (changed_)  // not all is settled
    return;
  for (const Node& node : flow.nodes) {
    const Instruction& i = *node.instruction;
    const bool polls = i.opcode == "ld" || i.opcode == "atom", writes = publishes(i);
    if ((polls || writes) && !own.only_own(node)) {
      const Form address = operand(node, address_operand(i));
      if (polls) polled_[&node] = address;
      if (writes) published_.push_back({&node, address});
    }
  }
}

const Node* LookBack::published_above(const Node& poll) const {
  auto address = polled_.find(&poll);
  if (address == polled_.end()) return nullptr;
  const Node* first = nullptr;
  for (const auto& [store, own] : published_) {
    const Form below = of_any_thread(added(address->second, scaled(own, -1)));
    if (!is_sum(below) || !below.terms.empty()) continue;  // other words, as far as is known
    const int64_t step = step_of(own);
    if (step <= 0 || below.high > -step) return nullptr;
    first = first ? first : store;
  }
  return first;
}

// By how much the word of the next block is higher; 0 if it has not one number alone, or the words of a
// block's threads mix with the next one's.
int64_t LookBack::step_of(const Form& own) const {
  auto numbers = [&](const Term& t) { return is_block_number(t.symbol); };
  auto number = std::find_if(own.terms.begin(), own.terms.end(), numbers);
  const bool one = std::count_if(own.terms.begin(), own.terms.end(), numbers) == 1;
  const int64_t step = one ? number->factor : 0;
  const bool mixed = std::any_of(own.terms.begin(), own.terms.end(), [&](const Term& t) {
    return is_thread(t.symbol) && (t.factor >= step || t.factor <= -step);
  });
  return mixed ? 0 : step;
}

bool LookBack::is_block_number(Symbol symbol) const {
  return symbol == kBlockX || symbol == kBlockRow ||
         std::find(tickets_.begin(), tickets_.end(), symbol) != tickets_.end();
}

bool LookBack::merge(Form* into, Form value) const {
  if (value.kind == Form::Kind::kUnset || into->kind == Form::Kind::kAny) return false;
  if (into->kind == Form::Kind::kUnset) {
    *into = std::move(value);
    into->updates = 0;
    return true;
  }
  Form old = *into;
  if (is_sum(value) && value.terms != old.terms) {
    value = of_any_thread(std::move(value));
    old = of_any_thread(std::move(old));
  }
  if (!is_sum(value) || value.terms != old.terms) {
    *into = any();
    return true;
  }
  const bool lower = value.low < old.low;
  const bool higher = value.high > old.high;
  const bool endless = old.updates >= kMaxUpdates;
  if (lower) old.low = endless ? -kFar : value.low;
  if (higher) old.high = endless ? kFar : value.high;
  const bool changed = old.terms != into->terms || old.low != into->low || old.high != into->high;
  old.updates = static_cast<uint8_t>(std::min<int>(old.updates + changed, kMaxUpdates));
  *into = std::move(old);
  return changed;
}

Form LookBack::symbol(Name name, uint64_t offset) {
  auto next = static_cast<Symbol>(kFirstNamed + symbols_.size());
  return of(symbols_.try_emplace({name, offset}, next).first->second);
}

Form LookBack::special(const Operand& o) const {
  for (const auto& row : kSpecials)
    if (row.name == o.name && row.suffix == o.suffix.view()) return of(row.symbol);
  return any();
}

// The value of operand n; of an address, where it points.
Form LookBack::operand(const Node& node, size_t n) {
  if (n >= node.instruction->operands.size()) return any();
  const Operand& o = node.instruction->operands[n];
  const auto offset = static_cast<int64_t>(o.bits);
  switch (o.kind) {
    case Operand::Kind::kInteger:
      return between(offset, offset);
    case Operand::Kind::kSpecial:
      return special(o);
    case Operand::Kind::kRegister:
      return o.suffix.empty() && !o.minus ? forms_[flow_.object_of(node, n)] : any();
    case Operand::Kind::kSymbol:
      return flow_.object_of(node, n) ? any() : added(symbol(o.name, 0), between(offset, offset));
    case Operand::Kind::kAddress: {
      const Form base = o.base_is_register ? forms_[flow_.object_of(node, n)] : symbol(o.name, 0);
      return added(base, between(offset, offset));
    }
    default:
      return any();
  }
}

// Parameters of the kernel, the same for all threads; and what threads of the block hand to each other.
Form LookBack::loaded(const Node& node) {
  const Instruction& i = *node.instruction;
  const Operand& from = i.operands.back();
  if (i.operands.size() != 2 || from.kind != Operand::Kind::kAddress || from.base_is_register ||
      i.operands[0].kind != Operand::Kind::kRegister)
    return any();
  const auto& params = flow_.function->params;
  const bool own =
      std::any_of(params.begin(), params.end(), [&](const ptx::Variable& p) { return p.name == from.name; });
  const Space space = ptx::space_of(i);
  if (space == Space::kParam && own && flow_.function->is_entry)
    return symbol(from.name, from.bits + 1);  // 0 is the address of a variable
  return space == Space::kShared ? shared_[{from.name, from.bits}] : any();
}

void LookBack::store_shared(const Node& node) {
  const Instruction& i = *node.instruction;
  if (i.opcode == "st" && ptx::space_of(i) == Space::kShared && i.operands.size() == 2 &&
      i.operands[0].kind == Operand::Kind::kAddress && !i.operands[0].base_is_register)
    changed_ |= merge(&shared_[{i.operands[0].name, i.operands[0].bits}], of_any_thread(operand(node, 1)));
}

// The next number, drawn from a counter that all blocks share, as the block's own.
Form LookBack::ticket(const Node& node) {
  const Instruction& i = *node.instruction;
  const bool draws = i.has("add") && i.operands.size() == 3 &&
                     i.operands[2].kind == Operand::Kind::kInteger && i.operands[2].bits == 1;
  const Space space = ptx::space_of(i);
  if (!draws || (space != Space::kGlobal && space != Space::kNone)) return any();
  const Form drawn = symbol("", static_cast<uint64_t>(&node - flow_.nodes.data()));
  const Symbol number = drawn.terms[0].symbol;
  if (!is_block_number(number)) tickets_.push_back(number);
  return drawn;
}

Form LookBack::transfer(const Node& node) {
  const Instruction& i = *node.instruction;
  if (i.operands.size() < 2 || i.operands[0].kind == Operand::Kind::kVector || i.has("hi") ||
      (i.opcode == "cvt" && !keeps_value(i)))
    return any();
  if (i.opcode == "ld") return loaded(node);
  if (i.opcode == "atom") return ticket(node);
  for (const auto& row : kArithmetic)
    if (row.opcode == i.opcode) return row.make(operand(node, 1), operand(node, 2), operand(node, 3));
  return any();
}

}  // namespace tessera::slice
