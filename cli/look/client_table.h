// The text of `tessera ps` and `tessera top`, from the daemon's answers before and now. At most 80 columns. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

inline constexpr int kTableColumns = 80;

// Two answers of the daemon, `seconds` apart.
struct TwoLooks {  // NOLINT(bugprone-exception-escape): the json of nlohmann asserts when it is moved
  nlohmann::json before, now;
  double seconds = 0;
};

std::string ps_table(const TwoLooks& looks);  // sums since each client came; GPU: share between the looks
// A line for each client whose launches keep off some SMs now, and by which mechanism; "" = none has any reserved.
std::string ps_reserves(const nlohmann::json& now);
// A line for each client whose work starts during bursts: of which classes now, and how often it did.
std::string ps_beside(const nlohmann::json& now);
// The best-effort programs that had next to nothing in the last seconds, why, and a remedy; "" = none.
std::string ps_starved(const nlohmann::json& now);
// For a member of a gang: its place there, and whether and where the gang is held. "" = it is in none.
std::string gang_line(const nlohmann::json& client);
std::string ps_gangs(const nlohmann::json& now);  // a line for each member
// A line for each best-effort client: how much of it was cut and can be, what stands in the way, and what would help.
std::string ps_cutting(const nlohmann::json& now);
std::string ps_memory(const nlohmann::json& now);  // who has how much, by GPU
// Says what each gate gives and costs. Measured on an H200 (docs/hardware-status.md); what the device's gives was not.
inline constexpr char kGatePrices[] =
    "gates: in its thread a held launch stops the program (eager trainers kept 0.13 to 0.41 of their speed "
    "on "
    "a half idle H200); on the device the program goes on, each quantum costs its thread 0.9 us and the GPU "
    "2.3 us, and the share is not measured on a GPU yet";
// Says where best-effort work waits: a line for each client that waits or waited on the device, one for the others by the reason
// why they do not, and the prices. "" = there is no best-effort client.
std::string ps_gates(const nlohmann::json& now);
// A line for clients that launched work before the daemon knew of them: it was neither gated nor counted.
std::string ps_unmanaged(const nlohmann::json& now);
// The measured cost of the minimum share for each protected program; "" = there is none, or no burst met it.
std::string ps_minimum(const nlohmann::json& now);
// For each client whose library calls are to be split (`tessera run --split-operations`): how many were seen, how many went out in
// pieces, and why the others did not.
std::string ps_splits(const nlohmann::json& now);
// The library calls of best-effort clients, a line for each function and element type. The rows that grew most between
// the looks come first, at most `most` of them; "" if there are none.
std::string operation_table(const TwoLooks& looks, size_t most);
std::string top_table(const TwoLooks& looks);  // rates between the looks, below a line for each GPU

// Lines of at most kTableColumns, broken at spaces; what follows the first is indented.
std::string wrapped(std::string rest);
// A printable text, a list or a count that the daemon sent; empty or 0 if there is none.
std::string text_in(const nlohmann::json& object, const char* key);
nlohmann::json list_in(const nlohmann::json& object, const char* key);
uint64_t count_in(const nlohmann::json& object, const char* key);
// 950, 12.3k, 4.56M; never wider than five characters below 10^15.
std::string short_count(double n);
// 850 us, 12 ms, 1.2 s, 3.4 min, 5.6 h
std::string short_duration(double ns);

}  // namespace tessera::cli
