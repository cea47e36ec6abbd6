/* More thread-local storage than glibc sets aside beside an auditing library (cli/run/client_environment.cc); as jemalloc has. */
static __attribute__((tls_model("initial-exec"))) __thread char storage[4096];
char* big_tls(void) {
  return storage;
}
