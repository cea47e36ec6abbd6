#include "cli/look/exporter.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/latency_buckets.h"
#include "base/printable.h"
#include "scheduler_daemon/stats/stats.h"

namespace tessera::cli {
namespace {

std::string metrics(const std::string& state, const std::string& schema,
                    const std::string& proc = "/nowhere") {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, metric_families(state, schema, proc));
  return out.str();
}

TEST(Exporter, NamesUnitsAndLabelsComeFromTheDaemonsDescription) {
  stats::Snapshot s;
  s.uptime_ns = 5'000'000'000;
  s.counters.grants = 7;
  stats::ClientRow client;
  client.pid = 42;
  client.name = "a \"b\"";
  client.priority = 3;
  client.weight = 250;
  client.counters.held_ns = 1'500'000'000;
  client.counters.in_flight_ns = 2'000'000;
  client.counters.launches = 9;
  s.clients.push_back(client);
  const std::string text = metrics(stats::to_json(s), stats::schema_json());
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has("tessera_up 1")) << text;
  EXPECT_TRUE(has("tessera_uptime_seconds 5"));
  EXPECT_TRUE(has("# TYPE tessera_daemon_grants_total counter"));
  EXPECT_TRUE(has("tessera_daemon_grants_total 7"));
  const std::string labels = R"({pid="42",name="a \"b\"",gpu="",uid="0",priority="3",UUID=""} )";
  EXPECT_TRUE(has(("tessera_client_launches_total" + labels + "9").c_str())) << text;
  EXPECT_TRUE(has(("tessera_client_held_seconds_total" + labels + "1.5").c_str())) << text;
  EXPECT_TRUE(has("# TYPE tessera_client_in_flight_seconds gauge"));
  EXPECT_TRUE(has(("tessera_client_in_flight_seconds" + labels + "0.002").c_str())) << text;
  EXPECT_TRUE(has(("tessera_client_weight" + labels + "250").c_str()));
}

TEST(Exporter, RequestsAreAHistogramOfEachKind) {
  stats::Snapshot s;
  stats::ClientRow client;
  client.pid = 42;
  stats::RequestRow row{.kind = "decode", .sum_ns = 2'500'000'000, .counts = {}};
  row.counts.resize(base::kLatencyBuckets);
  row.counts[0] = 3, row.counts[1] = 4, row.counts[8] = 5, row.counts[base::kLatencyBuckets - 1] = 6;
  client.requests.push_back(row);
  client.requests.push_back({.kind = "prefill", .slo_ns = 200'000'000, .within_slo = 17, .counts = {}});
  s.clients.push_back(client);
  const std::string text = metrics(stats::to_json(s), stats::schema_json());
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  const std::string labels = R"({pid="42",name="",gpu="",uid="0",priority="0",UUID="",kind="decode")";
  EXPECT_TRUE(has("# TYPE tessera_client_request_seconds histogram")) << text;
  EXPECT_TRUE(has("tessera_client_request_seconds_count" + labels + "} 18")) << text;
  const std::string of_prefill = std::string(labels).replace(labels.find("decode"), 6, "prefill") + "} ";
  EXPECT_TRUE(has("tessera_client_request_slo_seconds" + of_prefill + "0.2")) << text;
  EXPECT_TRUE(has("tessera_client_requests_within_slo_total" + of_prefill + "17")) << text;
  EXPECT_FALSE(has("slo_seconds" + labels)) << text;
  EXPECT_TRUE(has("tessera_client_request_seconds_sum" + labels + "} 2.5")) << text;
  EXPECT_TRUE(has("tessera_client_request_seconds_bucket" + labels + R"(,le="1.6384e-05"} 3)")) << text;
  EXPECT_TRUE(has("tessera_client_request_seconds_bucket" + labels + R"(,le="3.2768e-05"} 12)")) << text;
  EXPECT_TRUE(has("tessera_client_request_seconds_bucket" + labels + R"(,le="+Inf"} 18)")) << text;
  EXPECT_FALSE(has("le=\"1.8"));
}

TEST(Exporter, LabelsArePrintable) {
  const std::string text =
      metrics(R"({"clients": [{"name": "\u001b[2J\u009b", "gpu": "\r"}]})", stats::schema_json());
  EXPECT_NE(text.find(R"(name="\\x1b[2J\\xc2\\x9b",gpu="\\x0d")"), std::string::npos) << text;
  for (const char c : text) EXPECT_TRUE(c == '\n' || base::is_printable(c)) << int(c);
}

TEST(Exporter, GpuContainerAndPodCanBeJoinedWithOthersMetrics) {
  const std::string id(64, 'a'), uid = "0f9d5a3e-5b1c-4d7e-9a55-1c2d3e4f5a6b";
  const struct {
    std::string cgroup, container_id, pod_uid;
  } rows[] = {{"0::/\n", "", ""},
              {"0::/system.slice/docker-" + id + ".scope\n", id, ""},
              {"4:memory:/docker/" + id + "\n", id, ""},
              {"0::/machine.slice/libpod-" + id + ".scope/container\n", id, ""},
              {"0::/kubepods/burstable/pod" + uid + "/" + id + "\n", id, uid},
              {"0::/kubepods.slice/kubepods-pod0f9d5a3e_5b1c_4d7e_9a55_1c2d3e4f5a6b.slice/cri-containerd-" +
                   id + ".scope",
               id, uid},
              {"0::/kubepods/pod", "", ""},
              {"0::/" + id + "a\n", "", ""}};
  for (const auto& row : rows) {
    EXPECT_EQ(container_of(row.cgroup).container_id, row.container_id) << row.cgroup;
    EXPECT_EQ(container_of(row.cgroup).pod_uid, row.pod_uid) << row.cgroup;
  }
  const std::string folder = ::testing::TempDir() + "tessera-exporter-" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/42");
  std::filesystem::create_directories(folder +
                                      "/43/cgroup");  // cannot be read, as that of a process that has ended
  std::ofstream(folder + "/42/cgroup") << rows[4].cgroup;
  const std::string text =
      metrics(R"({"clients": [{"pid": 43, "gpu": "GPU-2"}, {"pid": 42, "gpu": "GPU-1"}]})",
              stats::schema_json(), folder);
  std::filesystem::remove_all(folder);
  EXPECT_NE(text.find(R"(UUID="GPU-1",container_id=")" + id + R"(",pod_uid=")" + uid + "\"}"),
            std::string::npos)
      << text;
}

TEST(Exporter, WithoutADaemonItSaysThatItIsDown) {
  EXPECT_NE(metrics("", "").find("tessera_up 0"), std::string::npos);
  EXPECT_NE(metrics("[]", "{}").find("tessera_up 0"), std::string::npos);
  EXPECT_EQ(metric_families("not json", "{}").size(), 1u);
}

}  // namespace
}  // namespace tessera::cli
