// H2: CPU time of one launch call. Run bare, through the shim, as protected and as best-effort client; the
// differences are what Tessera adds. Batches are kept below the queue depth, so that the call never waits.
#include "probe.h"

int main(int argc, char** argv) {
  int64_t batches = 200, batch = 100;
  samples::parse_options(argc, argv, "H2: nanoseconds per launch call.",
                         {{"--batches", &batches, "measured batches"},
                          {"--batch", &batch, "launches per batch"}});
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto launch_once = [&] { probe::nothing<<<1, 32, 0, stream>>>(); };
  for (int i = 0; i < 100; ++i) launch_once();
  CUDA_CHECK(cudaStreamSynchronize(stream));

  std::vector<double> launch_ns, round_trip_ns;
  for (int64_t b = 0; b < batches; ++b) {
    const uint64_t start = probe::now_ns();
    for (int64_t i = 0; i < batch; ++i) launch_once();
    launch_ns.push_back(double(probe::now_ns() - start) / double(batch));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const uint64_t alone = probe::now_ns();
    launch_once();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    round_trip_ns.push_back(double(probe::now_ns() - alone));
  }
  CUDA_CHECK(cudaGetLastError());
  probe::Report report("H2");
  probe::add_device(report);
  report.spread("launch_ns", launch_ns).spread("launch_and_sync_ns", round_trip_ns).print();
}
