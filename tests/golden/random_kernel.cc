#include "random_kernel.h"

#include <cstdio>

#include "base/hash.h"

namespace tessera::golden {

const char* const kFeatureNames[kFeatureCount] = {
    "coordinates",
    "callee",
    "nested_callee",
    "shared",
    "shuffle",
    "reduction",
    "module_global",
    "early_return",
    "loop",
    "divergence",
    "float",
    "guarded_read",
    "multi_dimensional",
    "edge_size",
    "cluster_by_kernel",
    "cluster_by_launch",
    "cluster_coordinates",
    "cluster_memory",
    "refused_on_purpose",
    "look_back_x",
    "look_back_row",
    "look_back_ticket",
};

uint64_t Random::next() {
  return base::mix64(state += base::kGoldenRatio);
}

namespace {

constexpr const char* kAxis[] = {"x", "y", "z"};
constexpr uint32_t kState = 5;  // %m0..%m4 hold what the kernel computes; everything ends in them

class Generator {
 public:
  Generator(uint64_t seed, bool look_back) : r_{seed * 2654435761u + 1}, look_back_(look_back) {}

  RandomKernel run() {
    sizes();
    const uint32_t n_callees = r_.below(3);
    for (uint32_t n = 0; n < n_callees; ++n) callee(n);
    n_callees_ = n_callees;
    entry();
    k_.text = ".version 8.0\n.target " + std::string(in_clusters() ? "sm_90" : "sm_75") +
              "\n.address_size 64\n.global .align 4 .u32 table[8] = {3, 1, 4, 1, 5, 9, "
              "2, 6};\n"
              ".visible .global .align 4 .u32 total = 7;\n" +
              callees_ + body_;
    return std::move(k_);
  }

 private:
  template <class... A>
  void emit(const char* format, A... a) {
    char line[640];
    std::snprintf(line, sizeof line, format, a..., 0);  // 0: clang suspects a format without arguments
    code_ += line;
    code_ += '\n';
  }
  void mark(Feature f) { k_.features |= 1u << f; }
  uint32_t m() { return r_.below(kState); }

  void sizes() {
    const uint32_t dimensions = 1 + r_.below(3);
    k_.grid = {1 + r_.below(dimensions == 1 ? kMostBlocks : 7), dimensions > 1 ? 1 + r_.below(5) : 1,
               dimensions > 2 ? 1 + r_.below(4) : 1};
    if (look_back_)
      k_.grid = {2 + r_.below(kMostBlocks - 1), 1, 1};
    else if (r_.chance(25))
      clusters();
    constexpr uint32_t kSizes[] = {1, 7, 31, 32, 33, 64};
    k_.block = {kSizes[r_.below(6)], r_.chance(20) ? 2u : 1u, 1};
    if (k_.grid[1] > 1 || k_.grid[2] > 1) mark(kMultiDimensional);
    if (k_.grid[0] == 1 || k_.block[0] % 32 != 0) mark(kEdgeSize);
    full_warps_ = k_.block[0] * k_.block[1] % 32 == 0;
  }

  // Fewer, so that the grid in blocks stays small.
  void clusters() {
    constexpr std::array<uint32_t, 3> kShapes[] = {{2, 1, 1}, {3, 1, 1}, {8, 1, 1}, {1, 2, 1},
                                                   {2, 2, 1}, {1, 1, 2}, {2, 1, 3}, {1, 1, 1}};
    shape_ = kShapes[r_.below(std::size(kShapes))];
    for (uint32_t axis = 0; axis < 3; ++axis) k_.grid[axis] = (k_.grid[axis] + 2) / 3 * shape_[axis];
    if (r_.chance(50)) k_.cluster = shape_;
    mark(k_.cluster[0] ? kClusterByLaunch : kClusterByKernel);
  }
  bool in_clusters() const { return shape_[0] != 0; }

  // m op= block coordinate or grid size, sometimes guarded.
  void coordinate(const char* target, bool may_guard) {
    const char* what = r_.chance(50) ? "ctaid" : "nctaid";
    if (in_clusters() && r_.chance(60)) {
      constexpr const char* kOfClusters[] = {"clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"};
      mark(kClusterCoordinates);
      what = kOfClusters[r_.below(4)];
    }
    const char* axis = kAxis[r_.below(3)];
    const char* type = r_.chance(50) ? "u32" : r_.chance(50) ? "b32" : "s32";
    mark(kCoordinates);
    if (may_guard && r_.chance(25)) {
      mark(kGuardedRead);
      emit("mov.u32 %%t0, 77;");
      emit("and.b32 %%t1, %s, 3;", target);
      emit("setp.eq.u32 %%p0, %%t1, 1;");
      emit("@%sp0 mov.%s %%t0, %%%s.%s;", r_.chance(50) ? "%" : "!%", type, what, axis);
    } else {
      emit("mov.%s %%t0, %%%s.%s;", type, what, axis);
    }
    emit("mad.lo.u32 %s, %s, 31, %%t0;", target, target);
  }

  void callee(uint32_t n) {
    code_.clear();
    emit("ld.param.u32 %%m0, [x];");
    emit("xor.b32 %%m0, %%m0, %u;", r_.below(1000));
    if (r_.chance(80)) coordinate("%m0", true);
    if (n > 0 && r_.chance(60)) {
      mark(kNestedCallee);
      call("%m0", r_.below(n));
    }
    emit("st.param.b32 [result], %%m0;\nret;");
    callees_ += ".func (.param .b32 result) f" + std::to_string(n) + "(.param .b32 x)\n{\n" + registers() +
                code_ + "}\n";
  }

  void call(const char* target, uint32_t n) {
    emit(
        "{\n.param .b32 a;\n.param .b32 b;\nst.param.b32 [a], %s;\ncall.uni (b), f%u, (a);\nld.param.b32 %s, "
        "[b];\n}",
        target, n, target);
  }

  static std::string registers() {
    return ".reg .b32 %m<5>, %t<4>, %i<64>, %n<10>;\n.reg .pred %p<4>;\n.reg .f32 %f<3>;\n.reg .b64 %d<8>, "
           "%e<4>;\n";
  }

  void entry() {
    code_.clear();
    emit(
        "ld.param.u64 %%d0, [in];\ncvta.to.global.u64 %%d0, %%d0;\nld.param.u64 %%d1, "
        "[out];\ncvta.to.global.u64 %%d1, %%d1;");
    emit("ld.param.u64 %%d2, [red];\ncvta.to.global.u64 %%d2, %%d2;");
    // Thread in the block (%t2) and, for the place of the result, in the grid (%t3).
    emit(
        "mov.u32 %%t0, %%tid.y;\nmov.u32 %%t1, %%ntid.x;\nmov.u32 %%t2, %%tid.x;\nmad.lo.u32 %%t2, %%t0, "
        "%%t1, %%t2;");
    emit(
        "mov.u32 %%t0, %%ctaid.z;\nmov.u32 %%t1, %%nctaid.y;\nmul.lo.u32 %%t0, %%t0, %%t1;\nmov.u32 %%t1, "
        "%%ctaid.y;");
    emit(
        "add.u32 %%t0, %%t0, %%t1;\nmov.u32 %%t1, %%nctaid.x;\nmul.lo.u32 %%t0, %%t0, %%t1;\nmov.u32 %%t1, "
        "%%ctaid.x;");
    emit("add.u32 %%t0, %%t0, %%t1;\nmad.lo.u32 %%t3, %%t0, %u, %%t2;", k_.block[0] * k_.block[1]);
    emit("mul.wide.u32 %%d3, %%t3, 4;\nadd.u64 %%d3, %%d1, %%d3;");
    for (uint32_t n = 0; n < kState; ++n)
      emit("mad.lo.u32 %%m%u, %%t3, %u, %u;", n, 1 + r_.below(1000), r_.below(1000));
    for (uint32_t n = 0; in_clusters() && n < 2; ++n) coordinate(n ? "%m0" : "%m1", n != 0);
    if (look_back_) look_back();
    statements(0, 4 + r_.below(10));
    if (!look_back_ && r_.chance(12)) {
      mark(kRefusedOnPurpose);
      emit("and.b32 %%t0, %%m0, 15;\nmul.wide.u32 %%d4, %%t0, 4;\nadd.u64 %%d4, %%d2, %%d4;");
      emit(r_.chance(50) ? "red.global.add.f32 [%%d4+448], 0f3F800000;"
                         : "atom.global.add.u32 %%m1, [%%d4], 1;");
    }
    for (uint32_t n = 1; n < kState; ++n) emit("mad.lo.u32 %%m0, %%m0, 16777619, %%m%u;", n);
    emit("st.global.u32 [%%d3], %%m0;\nret;");
    char directive[64] = "";
    if (in_clusters() && !k_.cluster[0]) {
      std::snprintf(directive, sizeof directive, ".reqnctapercluster %u, %u, %u\n", shape_[0], shape_[1],
                    shape_[2]);
    }
    body_ = ".visible .entry k(.param .u64 in, .param .u64 out, .param .u64 red)\n" + std::string(directive) +
            "{\n" + registers() + ".shared .align 4 .b8 tile[512];\n.shared .align 4 .u32 drawn, found;\n" +
            code_ + "}\n";
  }

  // Exclusive sum over the blocks of lower numbers (%n5) by the block's first thread: it publishes what the
  // block adds (1 << 28), looks back until it meets a sum that is complete (2 << 28), and publishes its own.
  // Words have the number (%n0) as index. Which block draws which ticket depends on the order: there all
  // blocks add the same, and what was found goes to the ticket's word.
  void look_back() {
    constexpr const char *kStores[] = {"relaxed.gpu", "release.gpu", "volatile"},
                         *kLoads[] = {"relaxed.gpu", "acquire.gpu", "volatile"};
    constexpr uint32_t kWords = kReductionWords * 4, kFound = kWords + kMostBlocks * 4,
                       kTicket = kFound + kMostBlocks * 4;
    const auto from = static_cast<Feature>(kLookBackX + r_.below(3));
    const uint32_t style = r_.below(3), added = 1 + r_.below(4000);
    mark(from);
    emit("setp.ne.u32 %%p3, %%t2, 0;");
    switch (from) {
      case kLookBackX:
        emit("mov.u32 %%n0, %%ctaid.x;");
        break;
      case kLookBackRow:
        emit("mov.u32 %%n6, %%ctaid.x;\nmov.u32 %%n7, %%nctaid.y;\nmov.u32 %%n8, %%ctaid.y;");
        emit("mad.lo.s32 %%n0, %%n6, %%n7, %%n8;");
        break;
      default:
        emit("@%%p3 bra DRAWN;\natom.global.add.u32 %%n6, [%%d2+%u], 1;\nst.shared.u32 [drawn], %%n6;",
             kTicket);
        emit("DRAWN:\nbar.sync 0;\nld.shared.u32 %%n0, [drawn];");
    }
    emit("mad.lo.u32 %%n3, %%n0, %u, %u;", from == kLookBackTicket ? 0 : r_.below(100), added);
    emit("mul.wide.u32 %%e0, %%n0, 4;\nadd.u64 %%e1, %%d2, %%e0;\n@%%p3 bra KNOWN;");
    emit("add.u32 %%n4, %%n3, %u;\nst.%s.global.u32 [%%e1+%u], %%n4;", 1u << 28, kStores[style], kWords);
    emit(
        "mov.u32 %%n5, 0;\nmov.u32 %%n1, %%n0;\nLOWER:\nadd.s32 %%n9, %%n1, -1;\nsetp.lt.s32 %%p1, %%n9, 0;");
    emit("@%%p1 bra FOUND;\nmul.wide.s32 %%e2, %%n9, 4;\nadd.u64 %%e3, %%d2, %%e2;");
    emit("POLL:\nld.%s.global.u32 %%n2, [%%e3+%u];\nsetp.eq.u32 %%p1, %%n2, 0;\n@%%p1 bra POLL;",
         kLoads[style], kWords);
    emit("mov.u32 %%n1, %%n9;\nand.b32 %%n4, %%n2, %u;\nadd.u32 %%n5, %%n5, %%n4;", (1u << 28) - 1);
    emit("setp.lt.u32 %%p1, %%n2, %u;\n@%%p1 bra LOWER;\nFOUND:", 2u << 28);
    emit("add.u32 %%n4, %%n5, %%n3;\nadd.u32 %%n4, %%n4, %u;\nst.%s.global.u32 [%%e1+%u], %%n4;", 2u << 28,
         kStores[style], kWords);
    if (from == kLookBackTicket) {
      emit("st.global.u32 [%%e1+%u], %%n5;\nKNOWN:", kFound);
      return;
    }
    emit("st.shared.u32 [found], %%n5;\nKNOWN:\nbar.sync 0;\nld.shared.u32 %%n5, [found];");
    emit("mad.lo.u32 %%m0, %%m0, 31, %%n5;");
  }

  void statements(uint32_t depth, uint32_t n) {
    for (; n > 0; --n) statement(depth);
  }

  void statement(uint32_t depth) {
    switch (r_.below(12)) {
      case 0:
      case 1:
        arithmetic();
        break;
      case 2:
        emit("and.b32 %%t0, %%m%u, %u;\nmul.wide.u32 %%d4, %%t0, 4;\nadd.u64 %%d4, %%d0, %%d4;", m(),
             kInputWords - 1);
        emit("ld.global%s.u32 %%t0, [%%d4];\nxor.b32 %%m%u, %%m%u, %%t0;", read_only(), m(), m());
        break;
      case 3:
        if (depth < 3) branch(depth);
        break;
      case 4:
        if (depth < 2) loop(depth);
        break;
      case 5:
        if (depth == 0 && !returned_) in_clusters() && r_.chance(70) ? exchange_in_cluster() : exchange();
        break;
      case 6:
        reduction();
        break;
      case 7:
        coordinate(("%m" + std::to_string(m())).c_str(), true);
        break;
      case 8:
        if (n_callees_) {
          mark(kCallee);
          call(("%m" + std::to_string(m())).c_str(), r_.below(n_callees_));
        }
        break;
      case 9:
        module_global();
        break;
      case 10:
        mark(kFloat);
        emit(
            "cvt.rn.f32.u32 %%f0, %%m%u;\ncvt.rn.f32.s32 %%f1, %%m%u;\nfma.rn.f32 %%f0, %%f0, %%f1, "
            "0f3FC00000;",
            m(), m());
        emit("mul.f32 %%f0, %%f0, 0f3EAAAAAB;\nmov.b32 %%m%u, %%f0;", m());
        break;
      case 11:
        if (depth == 0 && !returned_ && full_warps_ && r_.chance(50)) {
          mark(kShuffle);
          uint32_t a = m();
          emit("shfl.sync.bfly.b32 %%t0|%%p1, %%m%u, %u, 31, -1;\nadd.u32 %%m%u, %%m%u, %%t0;", a,
               1 + r_.below(31), a, a);
        } else if (r_.chance(15)) {
          mark(kEarlyReturn);
          returned_ = true;
          emit("and.b32 %%t0, %%m%u, 7;\nsetp.eq.u32 %%p0, %%t0, %u;", m(), r_.below(8));
          emit("@%%p0 st.global.u32 [%%d3], %%m%u;\n@%%p0 %s;", m(), r_.chance(50) ? "ret" : "exit");
        }
        break;
    }
  }

  void arithmetic() {
    constexpr const char* kOps[] = {"add.u32", "sub.u32", "mul.lo.u32", "xor.b32", "or.b32",    "and.b32",
                                    "min.s32", "max.u32", "shl.b32",    "shr.u32", "mul.hi.u32"};
    const char* op = kOps[r_.below(11)];
    bool shift = op[0] == 's' && op[1] == 'h';
    if (r_.chance(50) || shift)
      emit("%s %%m%u, %%m%u, %u;", op, m(), m(), shift ? r_.below(32) : 1 + r_.below(100000));
    else
      emit("%s %%m%u, %%m%u, %%m%u;", op, m(), m(), m());
  }

  void branch(uint32_t depth) {
    mark(kDivergence);
    uint32_t label = labels_++;
    emit("and.b32 %%t0, %%m%u, %u;\nsetp.%s.u32 %%p0, %%t0, %u;", m(), 1 + r_.below(7),
         r_.chance(50) ? "eq" : "lt", r_.below(5));
    emit("@%sp0 bra ELSE%u;", r_.chance(50) ? "%" : "!%", label);
    statements(depth + 1, 1 + r_.below(4));
    emit("bra.uni END%u;\nELSE%u:", label, label);
    if (r_.chance(60)) statements(depth + 1, 1 + r_.below(3));
    emit("END%u:", label);
  }

  void loop(uint32_t depth) {
    mark(kLoop);
    uint32_t label = labels_++, counter = label % 64;
    if (r_.chance(50))
      emit("and.b32 %%i%u, %%m%u, 3;", counter, m());
    else
      emit("mov.u32 %%i%u, %u;", counter, 1 + r_.below(4));
    emit("LOOP%u:", label);
    ++loops_;
    statements(depth + 1, 1 + r_.below(3));
    --loops_;
    emit("sub.u32 %%i%u, %%i%u, 1;\nsetp.gt.s32 %%p2, %%i%u, 0;\n@%%p2 bra LOOP%u;", counter, counter,
         counter, label);
  }

  // Input and table are written by nobody. In a loop that is said, or a return that they decide about would
  // be a wait for all that the analysis knows.
  const char* read_only() const { return loops_ > 0 ? ".nc" : ""; }

  void exchange() {
    mark(kShared);
    uint32_t a = m();
    emit("mov.u32 %%t0, tile;\nmad.lo.u32 %%t0, %%t2, 4, %%t0;\nst.shared.u32 [%%t0], %%m%u;\nbar.sync 0;",
         a);
    emit("add.u32 %%t0, %%t2, %u;\nrem.u32 %%t0, %%t0, %u;", 1 + r_.below(9), k_.block[0] * k_.block[1]);
    emit("mov.u32 %%t1, tile;\nmad.lo.u32 %%t0, %%t0, 4, %%t1;\nld.shared.u32 %%t0, [%%t0];\nbar.sync 0;");
    emit("mad.lo.u32 %%m%u, %%t0, 3, %%m%u;", m(), a);
  }

  // With a block of another rank, through its shared memory; the shape is not said in the text.
  void exchange_in_cluster() {
    constexpr const char* kBarrier =
        "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;";
    mark(kClusterMemory);
    const uint32_t a = m();
    emit("mov.u32 %%t0, tile;\nmad.lo.u32 %%t0, %%t2, 4, %%t0;\nst.shared.u32 [%%t0], %%m%u;\n%s", a,
         kBarrier);
    emit("mov.u32 %%t1, %%cluster_ctarank;\nadd.u32 %%t1, %%t1, %u;", 1 + r_.below(3));
    emit("mov.u32 %%i63, %%cluster_nctarank;\nrem.u32 %%t1, %%t1, %%i63;");
    if (r_.chance(50)) {
      emit("mapa.shared::cluster.u32 %%t0, %%t0, %%t1;\nld.shared::cluster.u32 %%t0, [%%t0];");
    } else {
      emit(
          "cvt.u64.u32 %%d4, %%t0;\ncvta.shared.u64 %%d4, %%d4;\nmapa.u64 %%d4, %%d4, %%t1;\nld.u32 %%t0, "
          "[%%d4];");
    }
    emit("%s\nmad.lo.u32 %%m%u, %%t0, 3, %%m%u;", kBarrier, m(), a);
  }

  void reduction() {
    constexpr const char* kOps[] = {"add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"};
    mark(kReduction);
    uint32_t op = r_.below(6);  // each operation has words of its own, so that all of them commute
    emit("and.b32 %%t0, %%m%u, 15;\nmul.wide.u32 %%d4, %%t0, 4;\nadd.u64 %%d4, %%d2, %%d4;", m());
    if (r_.chance(50)) {
      emit("red.global.%s [%%d4+%u], %%m%u;", kOps[op], op * 64, m());
    } else {
      emit("atom.global.%s %%t0, [%%d4+%u], %%m%u;\nmov.u32 %%t0, 0;", kOps[op], op * 64, m());
      dead_result();
    }
  }

  // %t0 is read elsewhere, so the result of the atomic must go to a register that nothing reads.
  void dead_result() {
    size_t at = code_.rfind("%t0, [%d4");
    code_.replace(at, 3, "_");
  }

  void module_global() {
    mark(kModuleGlobal);
    emit(
        "and.b32 %%t0, %%m%u, 7;\nmul.wide.u32 %%d4, %%t0, 4;\nmov.u64 %%d5, table;\nadd.u64 %%d4, %%d5, "
        "%%d4;",
        m());
    emit("ld.global%s.u32 %%t0, [%%d4];\nadd.u32 %%m%u, %%m%u, %%t0;", read_only(), m(), m());
    if (r_.chance(50)) emit("red.global.add.u32 [total], %%t0;");
  }

  Random r_;
  RandomKernel k_;
  std::string code_, callees_, body_;
  std::array<uint32_t, 3> shape_{};  // of clusters; zeros: none
  uint32_t labels_ = 0, n_callees_ = 0;
  uint32_t loops_ = 0;  // around what is emitted
  bool returned_ = false, full_warps_ = false;
  const bool look_back_;
};

}  // namespace

RandomKernel random_kernel(uint64_t seed, bool look_back) {
  return Generator(seed, look_back).run();
}

}  // namespace tessera::golden
