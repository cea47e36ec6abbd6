// The tool of the golden tests and scripts: reads PTX (or a fat binary), prints the result of a step.
//   kernels_tool print FILE      print(parse(FILE))
//   kernels_tool entries FILE    what a fat binary, cubin or host program holds
//   kernels_tool slice FILE      the module with slicing variants
//   kernels_tool passes FILE     the module after each pass of that, the verifier between
//   kernels_tool verdicts FILE   one line per kernel: name, verdict, detail
//   (slice, passes and verdicts take --allow-order-dependent before FILE)
//   kernels_tool siblings DIR FILE  of each kernel that may have one, the variant alone: DIR/KERNEL.ptx
//   kernels_tool stable FILE...  0 if print(parse(.)) is a fixed point for every file
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "kernels/image/image.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/slice.h"

namespace {

bool read_file(const char* path, std::string* out) {
  FILE* f = std::fopen(path, "rb");
  if (!f) {
    std::fprintf(stderr, "%s: cannot be read\n", path);
    return false;
  }
  char buffer[65536];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) out->append(buffer, n);
  std::fclose(f);
  return true;
}

// PTX text as it stands; of anything else the PTX that a driver for sm_90 would compile.
bool read_ptx(const char* path, std::string* out) {
  if (!read_file(path, out)) return false;
  auto entries = tessera::image::list({reinterpret_cast<const uint8_t*>(out->data()), out->size()});
  if (!entries.ok()) return true;  // the parser says what is wrong with it
  std::erase_if(*entries, [](const auto& e) { return e.kind != tessera::image::EntryKind::kPtx; });
  if (const auto* entry = tessera::image::choose(*entries, 90)) {
    auto text = tessera::image::load(*entry);
    if (!text.ok()) {
      std::fprintf(stderr, "%s: %s\n", path, text.error().text.c_str());
      return false;
    }
    out->assign(text->begin(), text->end());
  }
  return true;
}

// Parses a file and hands its module on; prints what is wrong with it.
template <class Use>
int with_module(const char* path, Use use) {
  std::string text;
  if (!read_ptx(path, &text)) return 2;
  auto module = tessera::ptx::parse(text);
  if (module.ok()) return use(*module);
  std::fprintf(stderr, "%s:%s\n", path, module.error().text.c_str());
  return 1;
}

void print_module(const tessera::ptx::Module& module, FILE* to = stdout) {
  const std::string out = tessera::ptx::print(module);
  std::fwrite(out.data(), 1, out.size(), to);
}

int print_file(const char* path) {
  return with_module(path, [](const auto& module) { return print_module(module), 0; });
}

int stable_file(const char* path) {
  return with_module(path, [&](const auto& module) {
    const std::string once = tessera::ptx::print(module);
    auto second = tessera::ptx::parse(once);
    if (second.ok() && tessera::ptx::print(*second) == once) return 0;
    std::fprintf(stderr, "%s: %s%s\n", path, second.ok() ? "printing is not stable" : "printed text: ",
                 second.ok() ? "" : second.error().text.c_str());
    return 1;
  });
}

int list_entries(const char* path) {
  std::string bytes;
  if (!read_file(path, &bytes)) return 2;
  auto entries = tessera::image::read({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  if (!entries.ok()) {
    std::fprintf(stderr, "%s: %s\n", path, entries.error().text.c_str());
    return 1;
  }
  constexpr const char* kKinds[] = {"ptx", "cubin", "other"};
  for (const auto& e : *entries) {
    std::printf("%s sm_%u%s %u.%u %zu bytes%s%s\n", kKinds[static_cast<int>(e.kind)], e.sm,
                e.arch_specific     ? "a"
                : e.family_specific ? "f"
                                    : "",
                e.version_major, e.version_minor, e.payload.size(),
                e.options.empty() ? "" : " options: ", e.options.c_str());
  }
  return 0;
}

int slice_file(const char* path, bool emit, bool allow_order_dependent) {
  return with_module(path, [&](auto& module) {
    const auto reports =
        tessera::slice::add_variants(module, {.allow_order_dependent = allow_order_dependent});
    if (emit) return print_module(module), 0;
    for (const auto& r : reports) {
      const bool ascending = r.verdict.may_cut() && !r.look_back.empty();
      const std::string why = ascending ? "one row, ascending: " + r.look_back : r.verdict.detail;
      std::printf("%s %s%s%s\n", r.kernel.c_str(), refusal_name(r.verdict.refusal), why.empty() ? "" : ": ",
                  why.c_str());
    }
    return 0;
  });
}

int write_siblings(const std::string& folder, const char* path) {
  return with_module(path, [&](const auto& module) {
    const std::string text = tessera::ptx::print(module);
    for (const auto& r : tessera::slice::analyse(module)) {
      const auto globals = tessera::slice::passed_globals(module, r.kernel);
      if (!r.verdict.may_cut() || !globals.possible()) continue;
      auto sibling = tessera::ptx::parse(text);
      const bool made = tessera::slice::make_sibling(*sibling, r.kernel, globals).verdict.may_cut();
      FILE* f = made ? std::fopen((folder + "/" + r.kernel + ".ptx").c_str(), "wb") : nullptr;
      if (!f) {
        std::fprintf(stderr, "%s: no sibling of %s\n", path, r.kernel.c_str());
        return 1;
      }
      print_module(*sibling, f);
      std::fclose(f);
    }
    return 0;
  });
}

int print_passes(const char* path, bool allow_order_dependent) {
  return with_module(path, [&](auto& module) {
    tessera::slice::add_variants(
        module, {.allow_order_dependent = allow_order_dependent,
                 .verify_each_pass = true,
                 .dump = [](void*, const char* pass, const tessera::ptx::Module& made) {
                   std::printf("// --- after %s\n%s\n", pass, tessera::ptx::print(made).c_str());
                 }});
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  const bool allow = argc >= 4 && !std::strcmp(argv[2], "--allow-order-dependent");
  if (argc >= 3 && !std::strcmp(argv[1], "passes")) return print_passes(argv[argc - 1], allow);
  if (argc >= 3 && (!std::strcmp(argv[1], "slice") || !std::strcmp(argv[1], "verdicts")))
    return slice_file(argv[argc - 1], !std::strcmp(argv[1], "slice"), allow);
  if (argc >= 3 && !std::strcmp(argv[1], "print")) return print_file(argv[2]);
  if (argc >= 3 && !std::strcmp(argv[1], "entries")) return list_entries(argv[2]);
  if (argc >= 4 && !std::strcmp(argv[1], "siblings")) return write_siblings(argv[2], argv[3]);
  if (argc >= 3 && !std::strcmp(argv[1], "stable")) {
    int worst = 0;
    for (int i = 2; i < argc; ++i) worst = std::max(worst, stable_file(argv[i]));
    return worst;
  }
  std::fprintf(stderr, "usage: kernels_tool print|slice|passes|verdicts|entries|siblings|stable FILE...\n");
  return 2;
}
