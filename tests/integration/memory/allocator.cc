// A library that has the name of PyTorch's allocator, and nothing else of it (interpose/memory/wait.cc).
extern "C" __attribute__((visibility("default"))) int tessera_test_allocator() {
  return 0;
}
