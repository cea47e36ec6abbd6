# The parts of an installation: the same shape as the build folder (bin, lib, share/tessera) below TESSERA_SHAPE.
# `cmake --install build/release` puts it under /usr/local; scripts/package.sh makes Debian packages of it, where the
# shape is below /usr/lib/tessera: ld.so does not search there, so that our libcuda.so.1 meets only whom it is for.
set(TESSERA_SHAPE "" CACHE STRING "folder below the prefix, with a slash at its end")
include(GNUInstallDirs)

set(tessera_bin ${CMAKE_INSTALL_PREFIX}/${TESSERA_SHAPE}bin)  # of the unit
configure_file(packaging/tesserad.service.in ${CMAKE_BINARY_DIR}/packaging/tesserad.service @ONLY)

install(TARGETS tessera tessera-ptxas softgpu_arbiter RUNTIME DESTINATION ${TESSERA_SHAPE}bin COMPONENT tessera)
foreach(program latency_service batch_trainer eager_trainer transformer calibrate)
  install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} DESTINATION ${TESSERA_SHAPE}bin COMPONENT tessera)
endforeach()
install(TARGETS tessera_profile_injection LIBRARY DESTINATION ${TESSERA_SHAPE}lib COMPONENT tessera)
install(DIRECTORY profiles/gpus DESTINATION ${TESSERA_SHAPE}share/tessera COMPONENT tessera
        FILES_MATCHING PATTERN "*.toml")
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtessera.so ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtessera_alias.so
              ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/ld.so.preload
              ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtessera_ops.so ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtessera_audit.so
              ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtessera_ranges.so
        DESTINATION ${TESSERA_SHAPE}lib COMPONENT tessera)
install(DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/softgpu DESTINATION ${TESSERA_SHAPE}lib COMPONENT tessera)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/tessera DESTINATION ${TESSERA_SHAPE}share COMPONENT tessera)
install(DIRECTORY docs/ DESTINATION share/doc/tessera COMPONENT tessera)
install(FILES packaging/completions/tessera.bash RENAME tessera
        DESTINATION share/bash-completion/completions COMPONENT tessera)
install(FILES packaging/completions/tessera.fish DESTINATION share/fish/vendor_completions.d COMPONENT tessera)
install(FILES packaging/completions/_tessera DESTINATION share/zsh/vendor-completions COMPONENT tessera)
install(TARGETS tesserad RUNTIME DESTINATION ${TESSERA_SHAPE}bin COMPONENT tesserad)
install(FILES ${CMAKE_BINARY_DIR}/packaging/tesserad.service DESTINATION lib/systemd/system COMPONENT tesserad)
install(FILES packaging/tmpfiles.conf RENAME tesserad.conf DESTINATION lib/tmpfiles.d COMPONENT tesserad)
if(TESSERA_SHAPE)
  include(packaging/debian.cmake)
else()
  install(FILES packaging/tesserad.toml DESTINATION share/tessera COMPONENT tesserad)  # to be copied to /etc/tessera
endif()
