#include "cli/demo/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/split.h"

namespace tessera::cli {
namespace {

using base::Code;

// Not a last line cut off by a killed writer.
bool complete(const Csv& csv, const std::vector<std::string>& row) {
  return row.size() >= csv.columns.size();
}

// The named columns of a file as numbers, complete row by complete row.
base::Result<std::vector<std::vector<uint64_t>>> numbers(const Csv& csv, const std::string& path,
                                                         const std::vector<std::string>& names) {
  std::vector<int> at;
  for (const std::string& name : names) {
    at.push_back(csv.column(name));
    if (at.back() < 0) return base::error(Code::kInvalid, path + " has no column '" + name + "'");
  }
  std::vector<std::vector<uint64_t>> out;
  for (const auto& row : csv.rows) {
    if (!complete(csv, row)) continue;
    std::vector<uint64_t> values;
    for (const int column : at) values.push_back(strtoull(row[size_t(column)].c_str(), nullptr, 10));
    out.push_back(std::move(values));
  }
  return out;
}

base::Result<std::vector<std::vector<uint64_t>>> numbers(const std::string& path,
                                                         const std::vector<std::string>& names) {
  auto csv = read_csv(path);
  if (!csv) return csv.error();
  return numbers(*csv, path, names);
}

}  // namespace

std::vector<std::string> csv_cells(const std::string& line) {
  return base::split<std::string>(line, ',');
}

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
      csv.columns = csv_cells(line);
    else
      csv.rows.push_back(csv_cells(line));
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

namespace {

// An operation of the software GPU's trace that takes time on the device.
struct Operation {
  uint64_t enqueued_ns, start_ns, end_ns;  // as modelled
  uint64_t functional_end_ns;              // when its result was there
  uint64_t lag_ns, delivery_ns;            // result after the end; news of it after both
  bool kernel;
};

base::Result<std::vector<Operation>> timed_operations(const std::string& trace_path) {
  auto csv = read_csv(trace_path);
  if (!csv) return csv.error();
  auto rows = numbers(*csv, trace_path,
                      {"enqueued_ns", "start_ns", "end_ns", "functional_end_ns", "lag_ns", "delivery_ns"});
  if (!rows) return rows.error();
  const int kind = csv->column("kind");
  if (kind < 0) return base::error(Code::kInvalid, trace_path + " has no column 'kind'");
  std::vector<Operation> out;
  size_t index = 0;
  for (const auto& cells : csv->rows) {
    if (!complete(*csv, cells)) continue;
    const auto& row = (*rows)[index++];
    const std::string& what = cells[size_t(kind)];
    if (what == "kernel" || what == "copy")
      out.push_back({row[0], row[1], row[2], row[3], row[4], row[5], what == "kernel"});
  }
  std::sort(out.begin(), out.end(),
            [](const Operation& a, const Operation& b) { return a.enqueued_ns < b.enqueued_ns; });
  return out;
}

bool within(uint64_t time_ns, uint64_t from_ns, uint64_t to_ns) {
  return time_ns >= from_ns && time_ns <= to_ns;
}

}  // namespace

base::Result<std::vector<double>> turnarounds_us(const std::string& trace_path) {
  auto operations = timed_operations(trace_path);
  if (!operations) return operations.error();
  std::vector<double> out;
  uint64_t busy_until = 0, burst_start = 0;
  bool wants_kernel = false;
  for (const Operation& op : *operations) {
    if (op.enqueued_ns >= busy_until) {  // nothing outstanding: a burst begins
      burst_start = op.enqueued_ns;
      wants_kernel = true;
    }
    if (op.kernel && wants_kernel) {
      out.push_back(double(int64_t(op.start_ns - burst_start)) / 1e3);
      wants_kernel = false;
    }
    busy_until = std::max(busy_until, op.end_ns);
  }
  return out;
}

base::Result<std::vector<double>> latency_without_lag_ms(const std::string& csv_path,
                                                         const std::string& trace_path) {
  auto requests = numbers(csv_path, {"intended_ns", "start_ns", "end_ns"});
  if (!requests) return requests.error();
  auto operations = timed_operations(trace_path);
  if (!operations) return operations.error();
  std::vector<double> out;
  auto op = operations->begin();
  int64_t previous_end = 0, previous_end_without = 0;
  for (const auto& row : *requests) {
    while (op != operations->end() && op->enqueued_ns < row[1]) ++op;
    int64_t lag = 0;
    for (; op != operations->end() && op->enqueued_ns <= row[2]; ++op) lag += int64_t(op->lag_ns);
    const int64_t intended = int64_t(row[0]), start = int64_t(row[1]), end = int64_t(row[2]);
    const int64_t late = start - std::max(intended, previous_end);  // of the program itself: stays
    const int64_t start_without = std::max(intended, previous_end_without) + late;
    previous_end = end;
    previous_end_without = start_without + std::max<int64_t>(0, end - start - lag);
    out.push_back(double(previous_end_without - intended) / 1e6);
  }
  return out;
}

base::Result<double> lag_share(const std::string& trace_path, uint64_t from_ns, uint64_t to_ns) {
  auto operations = timed_operations(trace_path);
  if (!operations) return operations.error();
  double lag = 0;
  for (const Operation& op : *operations)
    if (within(op.end_ns, from_ns, to_ns)) lag += double(op.lag_ns);
  return lag / double(std::max<uint64_t>(1, to_ns - from_ns));
}

base::Result<double> slowdown_needed(const std::string& trace_path, uint64_t from_ns, uint64_t to_ns,
                                     double share) {
  constexpr double kStep = 1.25, kMost = 64;  // what needs more is not measured, but stopped
  auto operations = timed_operations(trace_path);
  if (!operations) return operations.error();
  const double allowed_ns = share * double(to_ns - std::min(from_ns, to_ns));
  for (double factor = 1;; factor *= kStep) {
    double late_ns = 0;
    for (const Operation& op : *operations) {
      if (op.functional_end_ns == 0 || !within(op.end_ns, from_ns, to_ns)) continue;
      const double took = double(int64_t(op.functional_end_ns - op.enqueued_ns)) / factor;
      late_ns += std::max(0.0, took - double(op.end_ns - op.enqueued_ns)) + double(op.delivery_ns) / factor;
    }
    if (late_ns <= allowed_ns || factor > kMost) return factor;
  }
}

}  // namespace tessera::cli
