// Scenario files: typed, bounded access to one TOML table, and every mistake with its place. Used by scenario.cc.
#pragma once

#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "base/toml.h"
#include "base/units.h"
#include "simulator/names.h"

namespace tessera::simulator {

constexpr double kNsPerUs = double(base::kNsPerUs);

// Mistakes of all files, in the order in which they were met.
struct Mistakes {
  std::string file;
  std::vector<std::string> lines;
  void add(const toml::source_region& at, const std::string& what) {
    lines.push_back(file + ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column) +
                    ": " + what);
  }
};

// One table: typed access, and at the end a complaint about every key that nobody asked for.
class Reader {
 public:
  Reader(const toml::table& table, std::string where, Mistakes* mistakes)
      : table_(table), where_(std::move(where)), mistakes_(mistakes) {}
  ~Reader() {
    for (const auto& [key, node] : table_)
      if (!asked_.contains(std::string(key.str())))
        mistakes_->add(key.source(), "unknown key `" + std::string(key.str()) + "` in " + where_ +
                                         "; known here: " + known());
  }
  Reader(const Reader&) = delete;

  double number(const char* key, double initial, double least, double most) {
    const toml::node* node = get(key);
    if (node == nullptr) return initial;
    auto value = node->value<double>();
    if (value && *value >= least && *value <= most) return *value;
    wrong(*node, key, "must be a number " + range_text(least, most));
    return initial;
  }
  // Durations, of `least` or more: 0 where nothing is divided by them and no loop advances by them.
  uint64_t us(const char* key, uint64_t initial_ns, double least = 0) {
    return uint64_t(number(key, double(initial_ns) / kNsPerUs, least, 1e10) * kNsPerUs);
  }
  uint64_t ms(const char* key, uint64_t initial_ns, double least = 0) {
    return uint64_t(number(key, double(initial_ns) / 1e6, least, 1e9) * 1e6);
  }
  bool flag(const char* key, bool initial) {
    const toml::node* node = get(key);
    if (node == nullptr) return initial;
    if (!node->is_boolean()) wrong(*node, key, "must be true or false");
    return node->value_or(initial);
  }
  std::string text(const char* key, const std::string& initial) {
    const toml::node* node = get(key);
    if (node == nullptr) return initial;
    if (!node->is_string()) wrong(*node, key, "must be a text in quotes");
    return node->value_or(initial);
  }
  template <size_t N>
  int choice(const char* key, int initial, const Name (&names)[N]) {
    const toml::node* node = get(key);
    if (node == nullptr) return initial;
    std::string all, value = node->value_or(std::string());
    for (const Name& n : names) {
      if (value == n.text) return n.value;
      all += std::string(all.empty() ? "" : ", ") + n.text;
    }
    wrong(*node, key, "must be one of (in quotes) " + all);
    return initial;
  }
  std::vector<std::string> texts(const char* key) {
    std::vector<std::string> out;
    const toml::node* node = get(key);
    if (node == nullptr) return out;
    const toml::array* array = node->as_array();
    if (array == nullptr || (!array->empty() && !array->is_homogeneous<std::string>()))
      wrong(*node, key, "must be a list of texts in quotes");
    else
      for (const auto& row : *array) out.push_back(row.value_or(std::string()));
    return out;
  }
  std::vector<double> numbers(const char* key, double least, double most) {
    std::vector<double> out;
    const toml::node* node = get(key);
    if (node == nullptr) return out;
    if (const toml::array* array = node->as_array())
      for (const auto& row : *array)
        if (auto value = row.value<double>(); value && *value >= least && *value <= most)
          out.push_back(*value);
    if (node->as_array() == nullptr || out.size() != node->as_array()->size())
      wrong(*node, key, "must be a list of numbers " + range_text(least, most));
    return out;
  }
  const toml::table* table(const char* key) {
    const toml::node* node = get(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) wrong(*node, key, "must be a table");
    return node->as_table();
  }
  std::vector<const toml::table*> tables(const char* key) {
    std::vector<const toml::table*> out;
    const toml::node* node = get(key);
    if (node == nullptr) return out;
    const toml::array* array = node->as_array();
    if (array == nullptr || !array->is_homogeneous<toml::table>())
      wrong(*node, key, "must be a list of tables");
    else
      for (const auto& row : *array) out.push_back(row.as_table());
    return out;
  }
  void wrong(const toml::node& node, const char* key, const std::string& what) {
    mistakes_->add(node.source(), std::string("`") + key + "` in " + where_ + " " + what);
  }
  // A name that is not there, at its place; `known` are the names that are.
  void unknown_name(const char* key, const std::string& name, const std::vector<std::string>& known) {
    std::string all;
    for (const std::string& n : known) all += (all.empty() ? "" : ", ") + n;
    const std::string what = "names `" + name + "`, which is not there; known: " + all;
    const toml::node* node = get(key);
    if (node == nullptr)
      missing(std::string("needs `") + key + "`; known: " + all);
    else
      wrong(*node, key, what);
  }
  void missing(const std::string& what) { mistakes_->add(table_.source(), where_ + " " + what); }

 private:
  static std::string range_text(double least, double most) {
    char text[64];
    std::snprintf(text, sizeof text, "from %g to %g", least, most);
    return text;
  }
  const toml::node* get(const char* key) {
    asked_.insert(key);
    return table_.get(key);
  }
  std::string known() const {
    std::string out;
    for (const std::string& key : asked_) out += (out.empty() ? "" : ", ") + key;
    return out;
  }
  const toml::table& table_;
  std::string where_;
  Mistakes* mistakes_;
  std::set<std::string> asked_;
};

}  // namespace tessera::simulator
