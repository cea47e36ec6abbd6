// Names the device and its driver: one JSON object, for the summary of a lab run.
#include "probe.h"

int main() {
  probe::Report report("info");
  probe::add_device(report);
  report.print();
}
