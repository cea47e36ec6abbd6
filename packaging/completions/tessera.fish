# Completion of fish, from what `--help` says.
function __tessera_command --description 'The subcommand on the command line, if there is one'
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or begin
            echo $word
            return
        end
    end
end
function __tessera_commands
    tessera --help 2>/dev/null | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\)  *\(.*\)/\1\t\2/p'
end
function __tessera_options
    tessera (__tessera_command) --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u
end
function __tessera_program --description 'What follows -- is a program of its own'
    contains -- -- (commandline -opc)
end
complete -c tessera -n 'test -z "$(__tessera_command)"' -f -a '(__tessera_commands)'
complete -c tessera -n 'not __tessera_program; and string match -q -- "-*" (commandline -ct)' -f -a '(__tessera_options)'
complete -c tessera -n __tessera_program -a '(__fish_complete_subcommand --fcs-skip=2)'
