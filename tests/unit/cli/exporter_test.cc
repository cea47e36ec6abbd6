#include "cli/exporter.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "base/printable.h"
#include "scheduler_daemon/stats/stats.h"

namespace tessera::cli {
namespace {

std::string metrics(const std::string& state, const std::string& schema) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, metric_families(state, schema));
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
  const std::string labels = R"({pid="42",name="a \"b\"",gpu="",uid="0",priority="3"} )";
  EXPECT_TRUE(has(("tessera_client_launches_total" + labels + "9").c_str())) << text;
  EXPECT_TRUE(has(("tessera_client_held_seconds_total" + labels + "1.5").c_str())) << text;
  EXPECT_TRUE(has("# TYPE tessera_client_in_flight_seconds gauge"));
  EXPECT_TRUE(has(("tessera_client_in_flight_seconds" + labels + "0.002").c_str())) << text;
  EXPECT_TRUE(has(("tessera_client_weight" + labels + "250").c_str()));
}

TEST(Exporter, LabelsArePrintable) {
  const std::string text =
      metrics(R"({"clients": [{"name": "\u001b[2J\u009b", "gpu": "\r"}]})", stats::schema_json());
  EXPECT_NE(text.find(R"(name="\\x1b[2J\\xc2\\x9b",gpu="\\x0d")"), std::string::npos) << text;
  for (const char c : text) EXPECT_TRUE(c == '\n' || base::is_printable(c)) << int(c);
}

TEST(Exporter, WithoutADaemonItSaysThatItIsDown) {
  EXPECT_NE(metrics("", "").find("tessera_up 0"), std::string::npos);
  EXPECT_NE(metrics("[]", "{}").find("tessera_up 0"), std::string::npos);
  EXPECT_EQ(metric_families("not json", "{}").size(), 1u);
}

}  // namespace
}  // namespace tessera::cli
