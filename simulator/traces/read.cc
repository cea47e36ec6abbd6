#include "simulator/traces/read.h"

#include "simulator/traces/csv.h"
#include "simulator/traces/kineto.h"
#include "simulator/traces/nsight.h"
#include "simulator/traces/text.h"

namespace tessera::simulator::traces {

base::Result<Recording> read_recording(const std::string& path) {
  auto text = FileText::open(path);
  if (!text.ok()) return text.error();
  std::istream& stream = text->stream();
  const int first = stream.peek();  // "SQLite format 3", a JSON text, or the CSV
  const bool json = first == '{' || first == '[' || first == '\n' || first == ' ';
  auto recording = first == 'S' ? read_nsight(stream, path)
                   : json       ? read_kineto(stream, path)
                                : read_csv(stream, path);
  const std::string problem = text->problem();
  if (recording.ok() && !problem.empty()) recording->remarks.push_back(problem);
  if (!recording.ok() && !problem.empty())
    return base::error(recording.error().code, recording.error().text + " (" + problem + ")");
  return recording;
}

}  // namespace tessera::simulator::traces
