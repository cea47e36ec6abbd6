// `tessera exporter`: tesserad's numbers for Prometheus. A program of its own beside the daemon: every scrape
// asks the daemon's socket, so the daemon keeps one thread, no network and no dependency on who looks. Names,
// units and descriptions come from the daemon's own description of its counters (stats.def).
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace tessera::cli {

struct ExporterOptions {
  std::string listen = "127.0.0.1:9478";
  std::string socket;  // "" = this user's default
  bool once = false;   // print the text and end, e.g. for the textfile collector of node_exporter
};
int exporter(const ExporterOptions& options);  // exit status; without `once` it returns on SIGTERM or SIGINT

// `state` and `schema`: the daemon's JSON answers. Unreadable ones give no families but tessera_up 0. `proc`: where
// the clients' control groups are read.
std::vector<prometheus::MetricFamily> metric_families(const std::string& state, const std::string& schema,
                                                      const std::string& proc = "/proc");

// The container and the Kubernetes pod of a process, from /proc/PID/cgroup; "" where there is none. Runtimes name a
// container's group by its 64 digits, the kubelet a pod's by its UID (with '_' where systemd makes the groups).
struct ContainerNames {
  std::string container_id, pod_uid;
};
ContainerNames container_of(const std::string& cgroup);

}  // namespace tessera::cli
