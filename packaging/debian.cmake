# Two packages: what a program needs, and the daemon with its unit. Made by scripts/package.sh.
set(debian ${CMAKE_SOURCE_DIR}/packaging/debian)
set(made ${CMAKE_BINARY_DIR}/packaging)

# Commands where people's PATH leads; each finds its libraries by where it really lies.
foreach(command tessera tesserad)
  file(CREATE_LINK ../${TESSERA_SHAPE}bin/${command} ${made}/${command} SYMBOLIC)
  install(FILES ${made}/${command} DESTINATION bin COMPONENT ${command})
  install(DIRECTORY ${made}/man_${command}/ DESTINATION share/man COMPONENT ${command} OPTIONAL)
  install(FILES ${debian}/copyright DESTINATION share/doc/${command} COMPONENT ${command})
  install(DIRECTORY ${made}/licences DESTINATION share/doc/${command} COMPONENT ${command} OPTIONAL)
  install(FILES ${made}/changelog.gz ${made}/${command}.doc/changelog.Debian.gz DESTINATION share/doc/${command}
          COMPONENT ${command} OPTIONAL)
  install(FILES ${debian}/${command}.overrides RENAME ${command} DESTINATION share/lintian/overrides
          COMPONENT ${command})
endforeach()
# CPack strips targets only; these are files.
install(CODE "set(CMAKE_STRIP ${CMAKE_STRIP})" COMPONENT tessera)
install(CODE [[
  file(GLOB programs "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/tessera/bin/*"
                     "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/tessera/lib/*.so"
                     "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/tessera/lib/softgpu/*.so*"
                     "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/tessera/lib/softgpu/handles/*.so*")
  execute_process(COMMAND ${CMAKE_STRIP} --strip-unneeded ${programs} COMMAND_ERROR_IS_FATAL ANY)
]] COMPONENT tessera)
install(FILES packaging/tesserad.toml DESTINATION /etc/tessera COMPONENT tesserad)
install(FILES packaging/sysusers.conf RENAME tesserad.conf DESTINATION lib/sysusers.d COMPONENT tesserad)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Tessera maintainers <maintainers@tessera.invalid>")
set(CPACK_PACKAGE_HOMEPAGE_URL "https://tessera.invalid")
set(CPACK_COMPONENTS_ALL tessera tesserad)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY} ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/softgpu)
if(CMAKE_CROSSCOMPILING)  # by the cross compiler's objdump, and what build/arm64-root says of its packages
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE} ${CMAKE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_TESSERA_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_TESSERA_PACKAGE_RECOMMENDS "tesserad")
set(CPACK_DEBIAN_TESSERA_PACKAGE_SUGGESTS "python3-matplotlib")
set(CPACK_COMPONENT_TESSERA_DESCRIPTION
    "shares one NVIDIA GPU between unmodified programs
Runs CUDA programs beside each other on one GPU so that a latency-critical
one is not disturbed: a preloaded library holds and cuts the work of
best-effort programs as the scheduler tesserad says. Also profiles
programs, simulates policies, and has a software GPU to try all of it.")
set(CPACK_DEBIAN_TESSERAD_PACKAGE_NAME tesserad)
set(CPACK_DEBIAN_TESSERAD_PACKAGE_DEPENDS "init-system-helpers (>= 1.52), passwd")
set(CPACK_DEBIAN_TESSERAD_PACKAGE_RECOMMENDS "tessera")
set(CPACK_DEBIAN_TESSERAD_PACKAGE_CONTROL_EXTRA
    "${debian}/conffiles;${debian}/postinst;${debian}/prerm;${debian}/postrm")
set(CPACK_DEBIAN_TESSERAD_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_TESSERAD_DESCRIPTION
    "scheduler that shares NVIDIA GPUs between programs
The system's daemon for all users of a GPU node: decides who may use the
GPU when. Programs started by tessera run attach to it by themselves;
where it is stopped they run on as if it had never been there.")
include(CPack)
