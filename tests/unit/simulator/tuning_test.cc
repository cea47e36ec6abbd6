// Constants of the policies by name.
#include "simulator/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::simulator {
namespace {

using policy::Tuning;
using testing::HasSubstr;

TEST(Tuning, NamesAndValuesAreChecked) {
  Tuning t;
  EXPECT_TRUE(set_tuning("free_sms=0", &t).ok());
  EXPECT_FALSE(t.free_sms);
  EXPECT_TRUE(set_tuning("scale_step", 0.3, &t).ok());
  EXPECT_EQ(t.scale_step, 0.3);
  EXPECT_TRUE(set_tuning("least_slice_ns=7000", &t).ok());
  EXPECT_EQ(t.least_slice_ns, 7000u);
  const Tuning before = t;
  EXPECT_THAT(set_tuning("romo=0", &t).error().text, HasSubstr("known: in_flight_limit, "));
  EXPECT_THAT(set_tuning("free_sms=2", &t).error().text, HasSubstr("0 (off) or 1 (on)"));
  EXPECT_THAT(set_tuning("least_slice_ns=0.5", &t).error().text, HasSubstr("whole number"));
  EXPECT_THAT(set_tuning("scale_step=-1", &t).error().text, HasSubstr("from 0"));
  for (const char* text : {"free_sms", "free_sms=", "free_sms=x", "free_sms=1x", ""})
    EXPECT_THAT(set_tuning(text, &t).error().text, HasSubstr("NAME=VALUE")) << text;
  EXPECT_EQ(t, before);
}

}  // namespace
}  // namespace tessera::simulator
