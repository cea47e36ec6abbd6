// The watchdog and the log of tesserad, in processes of their own: what they prevent would hang the test.
#include "scheduler_daemon/transport/watchdog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "scheduler_daemon/transport/log.h"

namespace tessera::transport {
namespace {

int status_of_child(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Watchdog, InterruptsACallThatDoesNotReturn) {
  EXPECT_EQ(status_of_child([] {
              const int empty = ::eventfd(0, 0);
              Watchdog watchdog;
              uint64_t count;
              return ::read(empty, &count, sizeof count) < 0 && errno == EINTR ? 7 : 0;
            }),
            7);
}

TEST(Watchdog, EndsAProcessThatHangsAndWasToldToEnd) {
  EXPECT_EQ(status_of_child([] {
              sigset_t blocked;
              sigemptyset(&blocked);
              sigaddset(&blocked, SIGTERM);
              ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
              ::raise(SIGTERM);
              Watchdog watchdog;
              for (volatile int forever = 1; forever != 0;) {
              }
              return 0;
            }),
            1);
}

TEST(Watchdog, LeavesAThreadAloneThatGetsOnOrRests) {
  EXPECT_EQ(status_of_child([] {
              Watchdog watchdog;
              sigset_t alarm, none;
              sigemptyset(&none);
              sigemptyset(&alarm);
              sigaddset(&alarm, SIGALRM);
              for (int i = 0; i < 4; ++i) {  // one look each
                watchdog.works();
                ::sigsuspend(&none);
              }
              if (watchdog.interruptions() != 0) return 1;
              watchdog.rests();
              ::sigsuspend(&none);  // the last look, which turns the timer off
              const timespec while_off{1, 0};
              ::sigprocmask(SIG_BLOCK, &alarm, nullptr);
              return ::sigtimedwait(&alarm, nullptr, &while_off) < 0 ? 7 : 2;
            }),
            7);
}

TEST(Log, AReaderThatDoesNotReadCostsLinesAndNothingElse) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  auto log = make_logger(ends[1]);
  log->set_pattern("%v");
  const std::string line(1000, 'x');
  for (int i = 0; i < 1000; ++i) log->info(line);  // a pipe holds 64 of them
  EXPECT_EQ(::fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
  std::string text(1 << 20, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  ASSERT_GT(n, 1000);
  log->info("the next one");
  const ssize_t more = ::read(ends[0], text.data(), text.size());
  ASSERT_GT(more, 0);
  text.resize(size_t(more));
  EXPECT_NE(text.find("lines lost"), std::string::npos) << text;
  EXPECT_NE(text.find("the next one"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::transport
