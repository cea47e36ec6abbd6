// The kernel's view of processes that live, die and are dead.
#include "scheduler_daemon/transport/dying.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace tessera::transport {
namespace {

// proc_pid_stat(5) with the fields in question.
std::string stat_of(const char* name, const char* flags, const char* threads, const char* pending) {
  std::string text = std::string("7 (") + name + ") S 1 1 1 0 -1 " + flags;
  for (int i = 10; i <= 40; ++i)
    text += i == 20 ? std::string(" ") + threads : i == 31 ? std::string(" ") + pending : " -1";
  return text;
}

TEST(Dying, IsAFatalSignalOrTheLastThreadsEnd) {
  EXPECT_FALSE(says_dying(stat_of("sh", "4194368", "1", "0")));
  EXPECT_TRUE(says_dying(stat_of("sh", "4195400", "5", "0")));       // PF_SIGNALED
  EXPECT_TRUE(says_dying(stat_of("sh", "4194368", "5", "256")));     // SIGKILL pending: not on a CPU since
  EXPECT_FALSE(says_dying(stat_of("sh", "4194368", "5", "16384")));  // SIGTERM pending: may have a handler
  EXPECT_FALSE(says_dying(stat_of("sh", "4227148", "5", "0")));      // PF_EXITING: its other threads go on
  EXPECT_TRUE(says_dying(stat_of("sh", "4227148", "1", "0")));
  EXPECT_FALSE(says_dying(stat_of(") Z 1 1 1 0 -1 4195400 (", "4194368", "2", "0")));  // a program's name
  EXPECT_FALSE(says_dying(""));
  EXPECT_FALSE(says_dying("7 (sh"));
  EXPECT_FALSE(says_dying("7 (sh) S 1 1 1 0 -1 4195400"));  // not a whole line
  EXPECT_FALSE(says_dying(stat_of("sh", "x", "y", "z")));
}

class DyingProcess : public ::testing::Test {
 protected:
  // Returns when the child has called `ready`.
  void start(void (*child)(int ready)) {
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) child(ready[1]);
    close(ready[1]);
    char c;
    EXPECT_EQ(read(ready[0], &c, 1), 1);
    close(ready[0]);
    pidfd_.reset(int(syscall(SYS_pidfd_open, pid_, 0)));
    ASSERT_TRUE(pidfd_.valid());
  }
  void await_death() {
    siginfo_t info;
    ASSERT_EQ(waitid(P_PID, id_t(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  void TearDown() override {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid_ = -1;
  base::ScopedFd pidfd_;
};

void* sleep_for_ever(void*) {
  for (;;) pause();
}

TEST_F(DyingProcess, IsNotOneThatLives) {
  start([](int ready) {
    (void)!write(ready, "x", 1);
    sleep_for_ever(nullptr);
  });
  base::ScopedFd stat = open_process_stat(pidfd_.get());
  ASSERT_TRUE(stat.valid());
  EXPECT_FALSE(is_dying(stat.get()));
  kill(pid_, SIGSTOP);
  EXPECT_FALSE(is_dying(stat.get()));
  kill(pid_, SIGKILL);
  await_death();
  EXPECT_TRUE(is_dying(stat.get()));
  EXPECT_FALSE(open_process_stat(pidfd_.get()).valid());  // too late: the pidfd tells
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  EXPECT_TRUE(is_dying(stat.get()));
}

TEST_F(DyingProcess, IsNotOneWhoseMainThreadAloneEnded) {
  start([](int ready) {
    static int ready_fd;
    ready_fd = ready;
    pthread_t thread;
    const auto after_main = [](void* main_thread) -> void* {
      pthread_join(*static_cast<pthread_t*>(main_thread), nullptr);
      (void)!write(ready_fd, "x", 1);
      return sleep_for_ever(nullptr);
    };
    static pthread_t main_thread = pthread_self();
    pthread_create(&thread, nullptr, after_main, &main_thread);
    syscall(SYS_exit, 0);  // this thread
  });
  base::ScopedFd stat = open_process_stat(pidfd_.get());
  ASSERT_TRUE(stat.valid());
  EXPECT_FALSE(is_dying(stat.get()));
}

TEST(Dying, IsUnknownWithoutAProcess) {
  EXPECT_FALSE(open_process_stat(-1).valid());
  EXPECT_FALSE(open_process_stat(STDERR_FILENO).valid());  // no pidfd
  EXPECT_FALSE(is_dying(-1));
}

}  // namespace
}  // namespace tessera::transport
