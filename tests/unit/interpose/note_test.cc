// What libtessera_ops.so says of a library call, as the launches under it see it.
#include "interpose/state/note.h"

#include "tests/unit/interpose/harness.h"

extern "C" const tessera::operations::NoteReader* tessera_note_reader(uint32_t version) noexcept;

namespace tessera::test {
namespace {

using operations::kNoteVersion;
using operations::Note;
using state::Role;
using state::t_note;

class Notes : public Gate {
 public:
  void TearDown() override {
    t_note = nullptr;
    Gate::TearDown();
  }
  const operations::NoteReader* reader = tessera_note_reader(kNoteVersion);
};

TEST_F(Notes, OnlyAVersionThatIsKnownIsRead) {
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(tessera_note_reader(kNoteVersion + 1), nullptr);
  EXPECT_EQ(tessera_note_reader(0), nullptr);
}

TEST_F(Notes, AreWantedOfBestEffortClientsOnly) {
  for (const Role role : {Role::kForward, Role::kProtected, Role::kBestEffort}) {
    attach(role);
    EXPECT_EQ(*reader->role == reader->reading_role, role == Role::kBestEffort);
  }
}

TEST_F(Notes, BelongToTheThreadUntilTheCallEnds) {
  Note note{.flop = 2, .bytes = 3};
  reader->set_note(&note);
  EXPECT_EQ(t_note, &note);
  std::thread([] { EXPECT_EQ(t_note, nullptr); }).join();
  reader->set_note(nullptr);
  EXPECT_EQ(t_note, nullptr);
}

TEST_F(Notes, AreNotReadWhileACaptureIsOpen) {
  attach(Role::kBestEffort);
  const CUstream stream = new_stream();
  Note note{};
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  reader->set_note(&note);
  EXPECT_EQ(t_note, nullptr);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  reader->set_note(&note);
  EXPECT_EQ(t_note, &note);
}

}  // namespace
}  // namespace tessera::test
