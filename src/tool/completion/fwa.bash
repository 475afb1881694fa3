# SPDX-License-Identifier: Apache-2.0
# bash completion for fwa(1)

_fwa_sets='default prefill train decode rules dims threads forgetting gpu-short gpu-forward gpu-backward gpu-decode'

_fwa_words()
{
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

# Folders, and files with the suffix $2.
_fwa_files()
{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -d -- "$1"; compgen -f -X "!*.$2" -- "$1")
}

_fwa()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} options='--help' all=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _fwa_words 'info run verify check bench mask --version --help' "$current"
        return
    fi
    [[ $command == verify ]] && all=' all'
    case $previous in
        -b | --backend)
            _fwa_words "cpu reference cuda hip$all" "$current"
            return ;;
        -f | --form)
            _fwa_words "auto recurrent masked chunked$all" "$current"
            return ;;
        -d | --dtype)
            _fwa_words "f64 f32 bf16 f16$all" "$current"
            return ;;
        -s | --state-dtype)
            _fwa_words 'f32 bf16 f16' "$current"
            return ;;
        -w | --what)
            _fwa_words 'effective mask' "$current"
            return ;;
        -p | --pass)
            _fwa_words 'forward backward train decode all' "$current"
            return ;;
        -o | --output)
            if [[ $command == mask ]]; then
                _fwa_files "$current" png
            else
                _fwa_files "$current" safetensors
            fi
            return ;;
        -t | --threads | -H | --head | -c | --channel | -n | --sequence | -S | --size | \
            -F | --filter | --seconds)
            return ;;
    esac
    case $command in
        run) options+=' --output --backward --backend --form --dtype --state-dtype --threads' ;;
        verify) options+=' --backend --form --dtype --threads' ;;
        check) options+=' --backend --form --dtype --filter --threads --json --verbose' ;;
        bench)
            options+=' --backend --form --dtype --pass --threads --seconds --json --list' ;;
        mask)
            options+=' --output --head --channel --sequence --what --log --size --backend --threads' ;;
    esac
    if [[ $current == -* ]]; then
        _fwa_words "$options" "$current"
    elif [[ $command == run || $command == verify || $command == mask ]]; then
        _fwa_files "$current" safetensors
    elif [[ $command == bench ]]; then
        _fwa_files "$current" txt
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$_fwa_sets" -- "$current")
    fi
}

complete -F _fwa fwa
