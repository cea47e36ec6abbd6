// H25: streams wait (cuStreamWaitValue64, GEQ) for a word in a memfd's page whose bytes two other processes store, as the
// gate on the device has it. Lost stores, waits that end too early, time from the last store to the first and the last
// kernel, by the number of waiting streams and CUDA_DEVICE_MAX_CONNECTIONS; and whether a stream that does not wait gets on.
// First: does the device compare word and value as the gate needs it, for classes of length in byte 0, busy peers and the override?
#include <sched.h>

#include "processes.h"

namespace {

using samples::now_ns;
constexpr unsigned kStorers = 2, kMaxStreams = 64;
constexpr double kFreeLimitUs = 500;  // a launch takes about 9 us; longer is blocked

struct Page {
  std::atomic<uint64_t> word;
  char padding[56];
  struct Storer {
    std::atomic<uint32_t> asked, done;   // rounds; asked by the measuring process, done by the storer
    std::atomic<uint64_t> stored_at_ns;  // just before its store
    char padding[48];
  } storers[kStorers];
  std::atomic<uint32_t> stop;
  char padding_2[60];
  uint32_t began[kMaxStreams + 1];  // stored by the device: the round of each stream's last kernel
};

__global__ void mark(volatile unsigned* word, unsigned round) {
  *word = round;
  __threadfence_system();
}

// Byte i of the word is this process's alone; all of them together are in one word.
int store_bytes(Page* page, unsigned i) {
  Page::Storer& storer = page->storers[i];
  auto* byte = reinterpret_cast<volatile uint8_t*>(&page->word) + i;
  for (uint32_t round = 1; !page->stop; ++round) {
    while (storer.asked != round && !page->stop) sched_yield();
    storer.stored_at_ns = now_ns();
    *byte = 0xff;
    storer.done = round;
  }
  return 0;
}

// Words of the gate, and the values that streams wait for: what passes, and what not. GEQ compares the difference, signed.
void ask_comparisons(Page* page, CUdeviceptr pinned, cudaStream_t stream, unsigned* mark_on_device,
                     const volatile uint32_t* began, double settle_us, double limit_s,
                     probe::Report& report) {
  const auto wait_value = probe::driver_function<processes::WaitValue64>("cuStreamWaitValue64");
  constexpr uint64_t kPeersIdle = 0x00ffffffffffff00, kBusyPeer = 1ull << 40, kOverride = 1ull << 56;
  uint64_t asked = 0, passed_wrongly = 0, held_wrongly = 0;
  uint32_t round = 1u << 31;
  for (const uint64_t peers : {kPeersIdle, kPeersIdle - kBusyPeer, kPeersIdle - 0x100, kPeersIdle + kOverride,
                               kPeersIdle - kBusyPeer + kOverride})
    for (const uint64_t open_class : {0, 1, 7, 8, 9, 255})
      for (const uint64_t needed_class : {1, 8, 255}) {
        const uint64_t word = peers + open_class, value = kPeersIdle + needed_class;
        const bool passes = int64_t(word - value) >= 0;
        ++round;
        ++asked;
        page->word = word;
        probe::driver_check(wait_value(stream, pinned, value, CU_STREAM_WAIT_VALUE_GEQ),
                            "cuStreamWaitValue64");
        mark<<<1, 1, 0, stream>>>(mark_on_device, round);
        const uint64_t start_ns = now_ns();
        while (*began != round && double(now_ns() - start_ns) < (passes ? limit_s * 1e9 : settle_us * 1e3))
          sched_yield();
        passed_wrongly += !passes && *began == round;
        held_wrongly += passes && *began != round;
        page->word = ~0ull >> 1;
        CUDA_CHECK(cudaStreamSynchronize(stream));
      }
  report.raw("comparisons", probe::Report()
                                .number("asked", double(asked))
                                .number("passed_wrongly", double(passed_wrongly))
                                .number("held_wrongly", double(held_wrongly))
                                .str());
}

int measure(int64_t rounds, double settle_us, double limit_s) {
  Page* page = processes::map_page<Page>(processes::make_page());
  for (unsigned i = 0; i < kStorers; ++i) processes::fork_child([&] { return store_bytes(page, i); });
  const auto wait_value = probe::driver_function<processes::WaitValue64>("cuStreamWaitValue64");
  const CUdeviceptr pinned = processes::pin_page(page);
  auto* began_on_device = reinterpret_cast<unsigned*>(pinned + offsetof(Page, began));
  // The first stream waits for nothing: it has a hardware queue of its own while there are more queues than
  // streams that wait.
  cudaStream_t free_stream, streams[kMaxStreams];
  CUDA_CHECK(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
  for (cudaStream_t& stream : streams) CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (cudaStream_t stream : streams) mark<<<1, 1, 0, stream>>>(began_on_device, 0);
  CUDA_CHECK(cudaDeviceSynchronize());
  const volatile uint32_t* began = page->began;
  uint32_t round = 0;
  probe::Report report;
  ask_comparisons(page, pinned, streams[0], began_on_device, began, settle_us, limit_s, report);
  for (const unsigned n_waiting : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    uint64_t lost = 0, early = 0, free_blocked = 0;
    std::vector<double> first_us, last_us, free_us;
    const auto n_began = [&] {
      unsigned n = 0;
      for (unsigned i = 0; i < n_waiting; ++i) n += began[i] == round;
      return n;
    };
    for (int64_t r = 0; r < rounds; ++r) {
      ++round;
      page->word = processes::kOpen & ~0xffffull;
      for (unsigned i = 0; i < n_waiting; ++i) {
        probe::driver_check(wait_value(streams[i], pinned, processes::kOpen, CU_STREAM_WAIT_VALUE_GEQ),
                            "cuStreamWaitValue64");
        mark<<<1, 1, 0, streams[i]>>>(began_on_device + i, round);
      }
      uint64_t start_ns = now_ns();
      mark<<<1, 1, 0, free_stream>>>(began_on_device + kMaxStreams, round);
      const auto past = [&](double us) { return double(now_ns() - start_ns) * 1e-3 > us; };
      while (began[kMaxStreams] != round && !past(kFreeLimitUs)) sched_yield();
      if (began[kMaxStreams] == round)
        free_us.push_back(double(now_ns() - start_ns) * 1e-3);
      else
        ++free_blocked;
      // One after the other in even rounds; at once in odd ones.
      const unsigned first = round / 2 % kStorers, second = 1 - first;
      page->storers[first].asked = round;
      if (round % 2 == 0) {
        while (page->storers[first].done != round) sched_yield();
        for (start_ns = now_ns(); !past(settle_us);) sched_yield();
        early += n_began();
      }
      page->storers[second].asked = round;
      while (page->storers[first].done != round || page->storers[second].done != round) {
      }
      const uint64_t open_ns =
          std::max<uint64_t>(page->storers[0].stored_at_ns, page->storers[1].stored_at_ns);
      start_ns = now_ns();
      while (n_began() == 0 && !past(limit_s * 1e6)) {
      }
      const uint64_t first_ns = now_ns();
      while (n_began() < n_waiting && !past(limit_s * 1e6)) {
      }
      const uint64_t last_ns = now_ns();
      if (n_began() == n_waiting) {
        first_us.push_back(double(first_ns - open_ns) * 1e-3);
        last_us.push_back(double(last_ns - open_ns) * 1e-3);
      } else {
        lost += n_waiting - n_began();
        page->word = ~0ull >> 1;  // the override's byte lets everything pass
      }
      CUDA_CHECK(cudaDeviceSynchronize());
    }
    report.raw("waiting_" + std::to_string(n_waiting),
               probe::Report()
                   .number("rounds", double(rounds))
                   .number("lost", double(lost))
                   .number("early", double(early))
                   .number("free_stream_blocked", double(free_blocked))
                   .spread("first_kernel_us", first_us)
                   .spread("last_kernel_us", last_us)
                   .spread("free_stream_us", free_us)
                   .str());
  }
  page->stop = 1;
  report.print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string role = "all";
  int64_t rounds = 200;
  double settle_us = 100, limit_s = 1;
  samples::parse_options(argc, argv, "H25: streams that wait for a word that other processes store.",
                         {{"--role", &role, "all; measure is started by it"},
                          {"--rounds", &rounds, "for each number of streams"},
                          {"--settle-us", &settle_us, "between two stores"},
                          {"--limit-s", &limit_s, "until a store is called lost"}});
  if (role != "all") return measure(rounds, settle_us, limit_s);
  probe::Report report("H25");
  bool answered = true;
  for (const char* connections : {"1", "8", "32"}) {
    processes::Child child({"--role", "measure", "--rounds", std::to_string(rounds), "--settle-us",
                            std::to_string(settle_us), "--limit-s", std::to_string(limit_s)},
                           {{"CUDA_DEVICE_MAX_CONNECTIONS", connections}});
    const std::string answer = child.answer(60);
    answered &= !processes::failed(answer);
    report.raw("connections_" + std::string(connections), answer);
  }
  report.print();
  return answered ? 0 : 1;
}
