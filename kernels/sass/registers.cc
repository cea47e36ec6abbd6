// The value of each register at each place: written by an instruction, or merged where a block is entered from several others.
#include <algorithm>

#include "kernels/sass/builder.h"

namespace tessera::sass {
namespace {

constexpr unsigned kRegisters = 256 + 256 + 8 + 8 + kMostStackWords + kMostConditions;
unsigned register_of(File file, unsigned index) {
  constexpr unsigned kFirst[] = {0, 256, 512, 520, 528, 528 + kMostStackWords};
  return kFirst[size_t(file)] + index;
}

}  // namespace

// Registers are numbered as they come: few programs use many.
unsigned GraphBuilder::variable(const Operand& o, uint16_t w) {
  unsigned& number = variables_[register_of(o.file, o.index + w)];
  if (number == 0) {
    is_predicate_.push_back(o.is_predicate() && o.file != File::kCondition);
    number = unsigned(is_predicate_.size());
  }
  return number - 1;
}

void GraphBuilder::tokens() {
  undefined_ = new_token({});
  tokens_[size_t(undefined_)].value = atom({kUndefined}, {});
  tokens_[size_t(undefined_)].known = true;
  variables_.assign(kRegisters, 0);
  for (const Instruction& in : p_.instructions) {
    const auto number_all = [&](const Operand& o) {
      for (uint16_t w = 0; w < o.words; w++)
        if (o.kind == Operand::Kind::kRegister && o.index != kZero && in_file(o, w)) variable(o, w);
    };
    std::ranges::for_each(in.writes, number_all);
    std::ranges::for_each(in.reads, number_all);
    number_all(in.guard);
  }
  const std::vector<int> none(is_predicate_.size(), kNoToken);
  states_.assign(p_.blocks.size(), {none, none});
  written_.resize(p_.instructions.size());
  for (uint32_t b = 0; b < p_.blocks.size(); b++)
    for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++)
      for (const Operand& o : p_.instructions[i].writes)
        for (uint16_t w = 0; w < o.words; w++) {
          const int t = new_token({.block = b, .made_by = i});
          written_[i].push_back(t);
          if (o.index != kZero && in_file(o, w)) states_[b].last[variable(o, w)] = t;
        }
  read_.resize(p_.instructions.size());
  overwritten_.resize(p_.instructions.size());
  guard_.resize(p_.instructions.size());
  for (uint32_t b = 0; b < p_.blocks.size(); b++) {
    std::vector<int> now = none;
    const auto content = [&](const Operand& o, uint16_t w) {
      if (o.kind != Operand::Kind::kRegister || o.index == kZero || !in_file(o, w)) return kNoToken;
      const unsigned v = variable(o, w);
      return now[v] != kNoToken ? now[v] : at_entry(b, v);
    };
    for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++) {
      const Instruction& in = p_.instructions[i];
      for (const Operand& o : in.reads)
        for (uint16_t w = 0; w < o.words; w++) read_[i].push_back(content(o, w));
      guard_[i] = content(in.guard, 0);
      for (const Operand& o : in.writes)
        for (uint16_t w = 0; w < o.words; w++)
          overwritten_[i].push_back(always(in.guard) ? kNoToken : content(o, w));
      size_t n = 0;
      for (const Operand& o : in.writes)
        for (uint16_t w = 0; w < o.words; w++, n++)
          if (o.index != kZero && in_file(o, w)) now[variable(o, w)] = written_[i][n];
    }
  }
}

bool GraphBuilder::in_file(const Operand& o, uint16_t w) {
  switch (o.file) {
    case File::kGeneral:
    case File::kUniform:
      return o.index + w < 255;
    case File::kPredicate:
    case File::kUniformPredicate:
      return o.index + w < 7;
    case File::kStack:
      return o.index + w < kMostStackWords;
    case File::kCondition:
      return o.index + w < kMostConditions;
  }
  return false;
}

int GraphBuilder::new_token(Token t) {
  tokens_.push_back(std::move(t));
  alias_.push_back(int(tokens_.size() - 1));
  return int(tokens_.size() - 1);
}

int GraphBuilder::at_entry(uint32_t b, unsigned v) {
  if (states_[b].first[v] != kNoToken) return states_[b].first[v];
  const auto& previous = p_.blocks[b].previous;
  int t = undefined_;
  if (b == 0 ? !previous.empty() : previous.size() > 1) {
    t = new_token({.merge = true, .predicate = is_predicate_[v], .block = b});
    states_[b].first[v] = t;  // before its operands: a loop asks again
    std::vector<int> operands;
    if (b == 0) operands.push_back(undefined_);
    for (const uint32_t from : previous) operands.push_back(at_end(from, v));
    tokens_[size_t(t)].operands = std::move(operands);
  } else if (previous.size() == 1) {
    t = at_end(previous[0], v);
  }
  return states_[b].first[v] = t;
}

int GraphBuilder::at_end(uint32_t b, unsigned v) {
  return states_[b].last[v] != kNoToken ? states_[b].last[v] : at_entry(b, v);
}

int GraphBuilder::find(int t) {
  while (alias_[size_t(t)] != t) t = alias_[size_t(t)] = alias_[size_t(alias_[size_t(t)])];
  return t;
}

// Moves are what they move; a merge of one thing is that thing.
void GraphBuilder::simplify() {
  for (uint32_t i = 0; i < p_.instructions.size(); i++) {
    const Instruction& in = p_.instructions[i];
    if (!always(in.guard) || !moves(in)) continue;
    if (written_[i].size() == 1 && read_[i].size() == 1 && read_[i][0] != kNoToken)
      alias_[size_t(written_[i][0])] = read_[i][0];
  }
  // Optimistic: a merge is nothing until one of its operands is something, and itself where two of them differ.
  constexpr int kNothing = kNoToken - 1;
  std::vector<int> is(tokens_.size());
  for (size_t t = 0; t < tokens_.size(); t++)
    is[t] = tokens_[t].merge && alias_[t] == int(t) ? kNothing : int(t);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t t = 0; t < tokens_.size(); t++) {
      if (!tokens_[t].merge || alias_[t] != int(t) || is[t] == int(t)) continue;
      int only = kNothing;
      for (const int o : tokens_[t].operands) {
        const int f = is[size_t(find(o))];
        if (f != kNothing) only = only == kNothing || only == f ? f : int(t);
        if (only == int(t)) break;
      }
      changed = changed || is[t] != only;
      is[t] = only;
    }
  }
  for (size_t t = 0; t < tokens_.size(); t++)
    if (is[t] != kNothing && alias_[t] == int(t)) alias_[t] = is[t];
}

}  // namespace tessera::sass
