# Debian's spdlog as headers alone: there is no archive of it.
find_package(fmt REQUIRED)
if(NOT TARGET spdlog::spdlog)
  add_library(spdlog::spdlog INTERFACE IMPORTED GLOBAL)
  target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(spdlog::spdlog INTERFACE fmt::fmt)
endif()
set(spdlog_FOUND TRUE)
