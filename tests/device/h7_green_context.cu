// H7: streams of a green context with functions of the primary context: does a launch work, and does it stay
// on the multiprocessors that the green context has? Every block reports %smid.
#include "green.h"

int main(int argc, char** argv) {
  int64_t share_of_sms = 4, rounds = 20000;
  samples::parse_options(
      argc, argv, "H7: green contexts.",
      {{"--share-of-sms", &share_of_sms, "one n-th of the multiprocessors"},
       {"--rounds", &rounds, "work per block"}});
  int n_multiprocessors = 0;
  CUDA_CHECK(cudaFree(nullptr));  // the primary context
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  probe::Report report("H7");
  probe::add_device(report);
  const unsigned wanted = std::max(1u, unsigned(n_multiprocessors / std::max<int64_t>(1, share_of_sms)));
  const probe::TwoParts parts = probe::split_device(probe::GreenDriver(), wanted);
  const probe::GreenPart& part = parts.first;
  report.boolean("created", parts.failed_at.empty());
  if (!parts.failed_at.empty()) {
    report.text("failed_at", parts.failed_at).number("result", parts.result).print();
    return 0;  // "no" is an answer
  }
  const int blocks = n_multiprocessors * 8;
  unsigned* seen = samples::device_array<unsigned>(size_t(blocks));
  probe::where<<<blocks, 128, 0, part.stream>>>(seen, int(rounds));  // a function of the primary context
  const cudaError_t launched = cudaStreamSynchronize(part.stream);
  report.number("multiprocessors_of_part", part.multiprocessors).text("launch", cudaGetErrorName(launched));
  if (launched == cudaSuccess) {
    const size_t used = probe::multiprocessors_of(seen, blocks).size();
    report.number("multiprocessors_used", double(used)).boolean("stays_inside", used <= part.multiprocessors);
  }
  report.print();
}
