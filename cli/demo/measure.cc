#include "cli/demo/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tessera::cli {
namespace {

using base::Code;

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  std::string cell;
  while (std::getline(stream, cell, ',')) cells.push_back(cell);
  return cells;
}

// The named columns of a file as numbers, row by row.
base::Result<std::vector<std::vector<uint64_t>>> numbers(const std::string& path,
                                                         const std::vector<std::string>& names) {
  auto csv = read_csv(path);
  if (!csv) return csv.error();
  std::vector<int> at;
  for (const std::string& name : names) {
    at.push_back(csv->column(name));
    if (at.back() < 0) return base::error(Code::kInvalid, path + " has no column '" + name + "'");
  }
  std::vector<std::vector<uint64_t>> out;
  for (const auto& row : csv->rows) {
    if (row.size() < csv->columns.size()) continue;  // a last line cut off by a killed writer
    std::vector<uint64_t> values;
    for (const int column : at) values.push_back(strtoull(row[size_t(column)].c_str(), nullptr, 10));
    out.push_back(std::move(values));
  }
  return out;
}

}  // namespace

int Csv::column(const std::string& name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  return found == columns.end() ? -1 : int(found - columns.begin());
}

base::Result<Csv> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) return base::error(Code::kNotFound, "cannot read " + path);
  Csv csv;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (csv.columns.empty())
      csv.columns = split(line);
    else
      csv.rows.push_back(split(line));
  }
  if (csv.columns.empty()) return base::error(Code::kInvalid, path + " is empty");
  return csv;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t rank = size_t(std::max(1.0, std::ceil(q * double(values.size())))) - 1;
  std::nth_element(values.begin(), values.begin() + long(rank), values.end());
  return values[rank];
}

base::Result<ServiceFigures> service_figures(const std::string& csv_path) {
  auto rows = numbers(csv_path, {"intended_ns", "end_ns"});
  if (!rows) return rows.error();
  if (rows->empty()) return base::error(Code::kInvalid, csv_path + " holds no request");
  ServiceFigures figures;
  figures.first_ns = UINT64_MAX;
  for (const auto& row : *rows) {
    figures.latency_ms.push_back(double(int64_t(row[1] - row[0])) / 1e6);
    figures.first_ns = std::min(figures.first_ns, row[0]);
    figures.last_ns = std::max(figures.last_ns, row[1]);
  }
  return figures;
}

base::Result<std::vector<double>> queue_ms(const std::string& csv_path, double service_ms) {
  auto rows = numbers(csv_path, {"intended_ns"});
  if (!rows) return rows.error();
  std::sort(rows->begin(), rows->end());
  std::vector<double> out;
  double free_ms = 0;  // since the first arrival: when the server has worked off what came so far
  for (const auto& row : *rows) {
    const double arrival_ms = double(row[0] - rows->front()[0]) / 1e6;
    free_ms = std::max(free_ms, arrival_ms) + service_ms;
    out.push_back(free_ms - arrival_ms);
  }
  return out;
}

base::Result<double> steps_within(const std::string& csv_path, uint64_t from_ns, uint64_t to_ns) {
  auto rows = numbers(csv_path, {"start_ns", "end_ns"});
  if (!rows) return rows.error();
  double steps = 0;
  for (const auto& row : *rows) {
    const uint64_t start = std::max(row[0], from_ns), end = std::min(row[1], to_ns);
    if (end > start && row[1] > row[0]) steps += double(end - start) / double(row[1] - row[0]);
  }
  return steps;
}

base::Result<std::vector<double>> turnarounds_us(const std::string& trace_path) {
  auto csv = read_csv(trace_path);
  if (!csv) return csv.error();
  const int kind = csv->column("kind");
  auto rows = numbers(trace_path, {"enqueued_ns", "start_ns", "end_ns"});
  if (!rows) return rows.error();
  if (kind < 0) return base::error(Code::kInvalid, trace_path + " has no column 'kind'");
  struct Operation {
    uint64_t enqueued, start, end;
    bool kernel;
  };
  std::vector<Operation> operations;
  size_t index = 0;
  for (const auto& cells : csv->rows) {
    if (cells.size() < csv->columns.size()) continue;
    const auto& row = (*rows)[index++];
    operations.push_back({row[0], row[1], row[2], cells[size_t(kind)] == "kernel"});
  }
  std::sort(operations.begin(), operations.end(),
            [](const Operation& a, const Operation& b) { return a.enqueued < b.enqueued; });
  std::vector<double> out;
  uint64_t busy_until = 0, burst_start = 0;
  bool wants_kernel = false;
  for (const Operation& op : operations) {
    if (op.enqueued >= busy_until) {  // nothing outstanding: a burst begins
      burst_start = op.enqueued;
      wants_kernel = true;
    }
    if (op.kernel && wants_kernel) {
      out.push_back(double(int64_t(op.start - burst_start)) / 1e3);
      wants_kernel = false;
    }
    busy_until = std::max(busy_until, op.end);
  }
  return out;
}

}  // namespace tessera::cli
