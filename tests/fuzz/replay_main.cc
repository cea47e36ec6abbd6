// Runs a fuzz target without libFuzzer: every file of the folders given, and of each file some mutants made
// by a fixed generator, so that the corpus and its neighbourhood run as a plain test with any compiler.
//   NAME_replay [--mutants N] FOLDER...
#include <dirent.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

struct Random {  // xorshift64*, the same everywhere
  uint64_t state = 0x9e3779b97f4a7c15;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1d;
  }
  size_t below(size_t n) { return n ? next() % n : 0; }
};

void run(const std::string& input) {
  // A copy of exactly this size: a sanitizer sees any look behind it.
  std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
  std::memcpy(exact.get(), input.data(), input.size());
  LLVMFuzzerTestOneInput(exact.get(), input.size());
}

std::string mutant(const std::string& from, const std::string& other, Random& random) {
  std::string s = from;
  for (size_t n = 1 + random.below(4); n > 0 && !s.empty(); --n) {
    size_t at = random.below(s.size()), length = std::min(s.size() - at, random.below(40));
    switch (random.below(6)) {
      case 0:
        s[at] = static_cast<char>(random.next());
        break;
      case 1:
        s[at] = static_cast<char>(s[at] ^ (1 << random.below(8)));
        break;
      case 2:
        s.erase(at, length);
        break;
      case 3:
        s.insert(at, s.substr(random.below(s.size()), length));
        break;
      case 4:
        s.insert(at, other.substr(random.below(other.size()), length));
        break;
      case 5:
        s.resize(at);
        break;
    }
  }
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  size_t n_mutants = 20;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--mutants") && i + 1 < argc) {
      n_mutants = static_cast<size_t>(std::strtoul(argv[++i], nullptr, 10));
      continue;
    }
    DIR* folder = opendir(argv[i]);
    if (!folder) {
      std::fprintf(stderr, "%s: not a folder\n", argv[i]);
      return 2;
    }
    std::vector<std::string> names;
    while (dirent* entry = readdir(folder)) names.emplace_back(entry->d_name);
    closedir(folder);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      FILE* f = name[0] == '.' ? nullptr : std::fopen((std::string(argv[i]) + "/" + name).c_str(), "rb");
      if (!f) continue;
      std::string& content = inputs.emplace_back();
      char buffer[65536];
      for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) content.append(buffer, n);
      std::fclose(f);
    }
  }
  if (inputs.empty()) {
    std::fprintf(stderr, "no inputs\n");
    return 2;
  }
  Random random;
  size_t n = 0;
  for (const std::string& input : inputs) {
    run(input);
    for (size_t k = 0; k < n_mutants; ++k, ++n)
      run(mutant(input, inputs[random.below(inputs.size())], random));
  }
  std::printf("%zu inputs, %zu mutants\n", inputs.size(), n);
  return 0;
}
