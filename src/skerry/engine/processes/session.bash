# The shell of a session. bash reads this file before each command of a session (BASH_ENV). It restores the state that
# earlier commands left, and sets a trap that saves the state again. The command itself is a plain `bash -c COMMAND`.
#
# Other files in this directory:
#   0, 1   the two latest states, each a script. The valid state has the greater number in its first line, if its last
#          line exists. The next state overwrites the other file, so a shell killed while saving damages nothing.
#   last   for the host: the command that saved last, its outcome, and the current directory of the session.
#
# On a full disk, nothing is saved, and the next command restores the previous state. A state is saved completely or not
# at all: if a value cannot be read back from `scratch`, __skerry_unread is set, and the last line is not written.
#
# A background command (SKERRY_SESSION_ONCE) restores the state, writes nothing here, and saves nothing.
#
# This file uses only builtins: it does not fork, use PATH or need a tool of the image. `builtin` bypasses functions of
# the user with names such as `cd` or `declare`; a user's function named `builtin` is not kept. All names begin with
# __skerry, because a local `x` would hide a user's variable. Once IFS is the user's, no expansion here may split words
# (`builtin local x=$y` would).

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  builtin echo 'skerry: sessions need bash 4.4 or newer' >&2
  builtin exit 2
fi

builtin declare -A __skerry_given __skerry_before
__skerry_gone=() __skerry_stack=() __skerry_names=()

# Take the values from the host: the variables of this command (a name with a ! is unset), and its directory.
__skerry_take() {
  builtin local __skerry_name __skerry_value
  __skerry_dir=${BASH_ENV%/*} __skerry_run=$SKERRY_SESSION_RUN
  __skerry_home=$SKERRY_SESSION_HOME __skerry_start=$SKERRY_SESSION_START __skerry_once=${SKERRY_SESSION_ONCE-}
  __skerry_names=($SKERRY_SESSION_GIVEN)
  builtin unset -v BASH_ENV
  [[ ! -v SKERRY_SESSION_BASH_ENV ]] || builtin export BASH_ENV="$SKERRY_SESSION_BASH_ENV"
  for __skerry_name in "${!__skerry_names[@]}"; do
    __skerry_value=SKERRY_SESSION_$__skerry_name
    [[ ${__skerry_names[__skerry_name]} == !* ]] || __skerry_given[${__skerry_names[__skerry_name]}]=${!__skerry_value}
  done
  builtin unset -v "${!SKERRY_SESSION_@}"
}

# Find the valid state: its file, its number, its kind ("new": no command has run yet).
__skerry_find() {
  builtin local __skerry_at __skerry_head __skerry_numbers __skerry_kinds __skerry_lines
  __skerry_numbers=(-1 -1) __skerry_kinds=()
  __skerry_slot=1 __skerry_number=0 __skerry_kind=new __skerry_damaged=damaged
  for __skerry_at in 0 1; do
    __skerry_head=
    builtin read -r __skerry_head <"$__skerry_dir/$__skerry_at"
    if [[ $__skerry_head =~ ^'# skerry-session 1 '(0|[1-9][0-9]{0,14})' '(new|kept)$ ]]; then
      __skerry_numbers[__skerry_at]=${BASH_REMATCH[1]} __skerry_kinds[__skerry_at]=${BASH_REMATCH[2]}
    fi
  done
  for __skerry_at in $((__skerry_numbers[1] > __skerry_numbers[0])) $((__skerry_numbers[1] <= __skerry_numbers[0])); do
    ((__skerry_numbers[__skerry_at] >= 0)) || builtin continue
    builtin mapfile -t __skerry_lines <"$__skerry_dir/$__skerry_at"
    if [[ ${__skerry_lines[*]: -1} == "__skerry_whole=${__skerry_numbers[__skerry_at]}" ]]; then
      __skerry_slot=$__skerry_at __skerry_number=${__skerry_numbers[__skerry_at]}
      __skerry_kind=${__skerry_kinds[__skerry_at]} __skerry_damaged=
      builtin return
    fi
  done
} 2>/dev/null

__skerry_take
__skerry_find
if [[ $__skerry_kind == new ]]; then # as a login shell does
  [[ ! -r /etc/profile ]] || builtin . /etc/profile
  for __skerry_name in .bash_profile .bash_login .profile; do
    if [[ -r ~/$__skerry_name ]]; then
      builtin . ~/"$__skerry_name"
      builtin break
    fi
  done
fi
if [[ ! $__skerry_damaged ]]; then
  builtin . "$__skerry_dir/$__skerry_slot" >/dev/null 2>&1
  [[ ${__skerry_whole-} == "$__skerry_number" ]] || __skerry_damaged=damaged
fi

__skerry_go_there() {
  builtin local __skerry_at
  __skerry_moved= __skerry_began=
  builtin cd -- "${__skerry_cwd-$__skerry_home}" || {
    __skerry_moved=moved
    builtin cd -- "$__skerry_home" || builtin cd -- ~ || builtin cd /
    __skerry_cwd=$PWD
  }
  for ((__skerry_at = ${#__skerry_stack[@]} - 1; __skerry_at >= 0; __skerry_at--)); do
    builtin pushd -n -- "${__skerry_stack[__skerry_at]}"
  done
  if [[ $__skerry_start ]]; then
    builtin cd -- "$__skerry_start" && __skerry_began=$PWD
  fi
  if [[ -v __skerry_oldpwd ]]; then OLDPWD=$__skerry_oldpwd; else builtin unset -v OLDPWD; fi
} >/dev/null 2>&1

# Read the variables that this shell was started with, which are the sandbox's, into __skerry_env.
__skerry_read_environment() {
  builtin local __skerry_entry __skerry_entries __skerry_name
  builtin mapfile -d '' -t __skerry_entries </proc/$$/environ
  for __skerry_entry in "${__skerry_entries[@]}"; do
    __skerry_name=${__skerry_entry%%=*}
    case $__skerry_name in
      SKERRY_SESSION_BASH_ENV) __skerry_name=BASH_ENV ;;
      '' | [!a-zA-Z_]* | *[!a-zA-Z_0-9]* | BASH_ENV | SKERRY_SESSION_*) builtin continue ;;
    esac
    __skerry_env[$__skerry_name]=${__skerry_entry#*=}
  done
}

# Test whether a variable has the value $2, is exported and has no other attribute.
__skerry_is() { [[ ${!1@a} == x && ${!1-} == "$2" ]]; }

# Set the variables of this command. The session's version of each is stored until the end: a declaration, a "-" if the
# session has unset a variable of the sandbox, or nothing if the session does not change it.
__skerry_hand_over() {
  builtin local __skerry_name __skerry_lines __skerry_text
  builtin local -A __skerry_env
  ((${#__skerry_names[@]} == 0)) || __skerry_read_environment
  for __skerry_name in "${__skerry_names[@]#!}"; do
    __skerry_text=
    if [[ $__skerry_once ]]; then
      : # never saved; and another command of the session may be using `scratch`
    elif ! builtin declare -p -- "$__skerry_name" >/dev/null; then
      [[ ! -v __skerry_env[$__skerry_name] ]] || __skerry_text=-
    elif [[ ! -v __skerry_env[$__skerry_name] ]] || ! __skerry_is "$__skerry_name" "${__skerry_env[$__skerry_name]}"; then
      builtin declare -p -- "$__skerry_name" >|"$__skerry_dir/scratch" || __skerry_unread=y
      builtin mapfile -t __skerry_lines <"$__skerry_dir/scratch"
      builtin printf -v __skerry_text '%s\n' "${__skerry_lines[@]}"
    fi
    __skerry_before[$__skerry_name]=$__skerry_text
    builtin unset -n "$__skerry_name"
    builtin unset -v "$__skerry_name"
    [[ ! -v __skerry_given[$__skerry_name] ]] || builtin export "$__skerry_name=${__skerry_given[$__skerry_name]}"
  done
} 2>/dev/null

__skerry_choose_shopts() {
  [[ $1 != "$BASHOPTS" ]] || builtin return
  builtin local __skerry_wanted __skerry_rest __skerry_name
  __skerry_wanted=:$1: __skerry_rest=$1:$BASHOPTS:
  while [[ $__skerry_rest ]]; do
    __skerry_name=${__skerry_rest%%:*} __skerry_rest=${__skerry_rest#*:}
    case $__skerry_wanted in
      *":$__skerry_name:"*) builtin shopt -s "$__skerry_name" ;;
      *) builtin shopt -u "$__skerry_name" ;;
    esac
  done
} >/dev/null 2>&1

# Set the options, last of all: from here on the shell traces, or exits at a failure, if the session has such an option.
# noexec and onecmd are left out: with them, no later command could repair the session. Return the status of the previous
# command.
__skerry_choose_options() {
  builtin local __skerry_wanted __skerry_rest __skerry_name __skerry_words
  __skerry_wanted=:$1: __skerry_rest=$1:$SHELLOPTS: __skerry_words=()
  __skerry_wanted=${__skerry_wanted//:noexec:/:} __skerry_wanted=${__skerry_wanted//:onecmd:/:}
  while [[ $__skerry_rest && $1 != "$SHELLOPTS" ]]; do
    __skerry_name=${__skerry_rest%%:*} __skerry_rest=${__skerry_rest#*:}
    case $__skerry_wanted in
      *":$__skerry_name:"*) __skerry_words+=(-o "$__skerry_name") ;;
      *) __skerry_words+=(+o "$__skerry_name") ;;
    esac
  done
  builtin unset -v __skerry_{options,shopts,signals,status,whole,kind,home,start,name,oldpwd,stack}
  builtin unset -f __skerry_{take,find,go_there,hand_over,choose_shopts,choose_options}
  {
    ((${#__skerry_words[@]} == 0)) || builtin set "${__skerry_words[@]}"
    builtin return "$2"
  } 2>/dev/null
}

# -- saving ------------------------------------------------------------------------------------------------------------

# A session saves its state in the EXIT trap. The EXIT trap of a command runs after that and is not kept.
trap() {
  { builtin local -; builtin set +exu; } 2>/dev/null
  builtin local __skerry_action __skerry_words __skerry_name
  __skerry_action=- __skerry_words=()
  if [[ $BASHPID != "$$" || $# == 0 || ($1 == -?* && $1 != --) ]]; then
    builtin trap "$@"
    builtin return
  fi
  [[ $1 != -- ]] || builtin shift
  if [[ $# -gt 1 && $1 != +([0-9]) ]]; then
    __skerry_action=$1
    builtin shift
  fi
  for __skerry_name; do
    case ${__skerry_name^^} in
      EXIT | SIGEXIT | 0) [[ $__skerry_action == - ]] && __skerry_exit= || __skerry_exit=$__skerry_action ;;
      *) __skerry_words+=("$__skerry_name") ;;
    esac
  done
  ((${#__skerry_words[@]} == 0)) || builtin trap -- "$__skerry_action" "${__skerry_words[@]}"
}

# Save at most 4 MiB, with a limit on the file size: bash cannot query a size. A full disk fails in the same way.
__skerry_save() {
  builtin local __skerry_outcome __skerry_lines __skerry_place
  __skerry_outcome=lost
  builtin trap '' XFSZ
  builtin ulimit -S -f 4096
  builtin pwd -L >|"$__skerry_dir/scratch" || __skerry_unread=y
  builtin mapfile -t __skerry_lines <"$__skerry_dir/scratch"
  builtin printf -v __skerry_place '%s\n' "${__skerry_lines[@]}"
  __skerry_place=${__skerry_place%?}
  [[ ${__skerry_unread-} || ($__skerry_began && $__skerry_place == "$__skerry_began") ]] || __skerry_cwd=$__skerry_place
  __skerry_write >|"$__skerry_dir/$((1 - __skerry_slot))" && __skerry_outcome=kept
  # Written over the old report, and not truncated: with a full disk the old one stays. A NUL ends it.
  builtin printf '%s\n%s\n%s\0' "$__skerry_run" "$__skerry_outcome $__skerry_moved $__skerry_damaged" "$__skerry_cwd" \
    1<>"$__skerry_dir/last"
  builtin ulimit -S -f hard
}

# Functions come after everything written as a bare `declare`, because a function may be named `declare`. Aliases and the
# option that enables them come after functions: the text of a function has its aliases expanded already.
__skerry_write() {
  builtin printf '# skerry-session 1 %d kept\n' "$((__skerry_number + 1))"
  builtin umask -p
  __skerry_write_places
  __skerry_write_variables
  builtin printf '%s\n' 'builtin shopt -s extglob' # a function may have been read with it
  __skerry_write_functions
  __skerry_write_aliases
  [[ ! ${__skerry_unread-} ]] || builtin return 1
  builtin printf '__skerry_%s\n' "signals=${__skerry_signals@Q}" "shopts=${__skerry_shopts@Q}" \
    "options=${__skerry_options@Q}" "status=$__skerry_status" "whole=$((__skerry_number + 1))"
}

__skerry_write_places() {
  builtin local __skerry_name
  builtin printf '__skerry_cwd=%s\n' "${__skerry_cwd@Q}"
  [[ ! -v OLDPWD ]] || builtin printf '__skerry_oldpwd=%s\n' "${OLDPWD@Q}"
  for __skerry_name in "${DIRSTACK[@]:1}"; do builtin printf '__skerry_stack+=(%s)\n' "${__skerry_name@Q}"; done
}

# Variables that bash creates, or that belong to one shell only.
__skerry_shells='@(__skerry_*|_|BASH|BASHOPTS|BASHPID|BASH_ALIASES|BASH_ARG*|BASH_CMDS|BASH_COMMAND|BASH_EXECUTION_STRING'
__skerry_shells+='|BASH_LINENO|BASH_LOADABLES_PATH|BASH_MONOSECONDS|BASH_REMATCH|BASH_SOURCE|BASH_SUBSHELL|BASH_TRAPSIG'
__skerry_shells+='|BASH_VERSINFO|BASH_VERSION|BASH_XTRACEFD|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME'
__skerry_shells+='|GROUPS|HISTCMD|HOSTNAME|HOSTTYPE|LINENO|MACHTYPE|OLDPWD|OPTERR|OPTIND|OSTYPE|PIPESTATUS|POSIXLY_CORRECT'
__skerry_shells+='|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID)'

# Write only differences from the sandbox's variables, so that later changes of those take effect.
__skerry_write_variables() {
  builtin local -A __skerry_env
  builtin local __skerry_name
  __skerry_read_environment
  for __skerry_name in \
    "${!A@}" "${!B@}" "${!C@}" "${!D@}" "${!E@}" "${!F@}" "${!G@}" "${!H@}" "${!I@}" "${!J@}" "${!K@}" "${!L@}" "${!M@}" \
    "${!N@}" "${!O@}" "${!P@}" "${!Q@}" "${!R@}" "${!S@}" "${!T@}" "${!U@}" "${!V@}" "${!W@}" "${!X@}" "${!Y@}" "${!Z@}" \
    "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" "${!h@}" "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" \
    "${!n@}" "${!o@}" "${!p@}" "${!q@}" "${!r@}" "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}" \
    "${!_@}"; do
    [[ $__skerry_name != $__skerry_shells ]] || builtin continue
    __skerry_write_variable "$__skerry_name"
    builtin unset -v "__skerry_env[$__skerry_name]"
  done
  for __skerry_name in "${!__skerry_env[@]}" "${__skerry_gone[@]}" "${__skerry_names[@]#!}"; do
    __skerry_write_absence "$__skerry_name"
  done
}

__skerry_write_variable() {
  if [[ -v __skerry_given[$1] ]] && __skerry_is "$1" "${__skerry_given[$1]}"; then
    [[ ${__skerry_before[$1]} == - ]] || builtin printf '%s' "${__skerry_before[$1]}"
    [[ ${__skerry_before[$1]} != - ]] || builtin printf '__skerry_gone+=(%s)\n' "$1"
  elif [[ ! -v __skerry_env[$1] ]] || ! __skerry_is "$1" "${__skerry_env[$1]}"; then
    builtin declare -p -- "$1"
  fi
}

# Write a variable that is not set now: unset for this command only, or unset by the session.
__skerry_write_absence() {
  if [[ $1 == $__skerry_shells ]] || builtin declare -p -- "$1" >/dev/null; then
    builtin return
  elif [[ -v __skerry_before[$1] && ! -v __skerry_given[$1] && ${__skerry_before[$1]} != - ]]; then
    builtin printf '%s' "${__skerry_before[$1]}"
  else
    builtin printf '__skerry_gone+=(%s)\n' "$1"
  fi
}

# Write each function as a word for eval: if bash cannot read its own output, only that function is lost.
__skerry_write_functions() {
  builtin local __skerry_entry __skerry_entries __skerry_lines __skerry_name __skerry_text
  builtin declare -F >|"$__skerry_dir/scratch" || __skerry_unread=y
  builtin mapfile -t __skerry_entries <"$__skerry_dir/scratch"
  for __skerry_entry in "${__skerry_entries[@]}"; do # declare -fx NAME
    __skerry_name=${__skerry_entry##* }
    case $__skerry_name in __skerry_* | trap | builtin) builtin continue ;; esac
    builtin declare -f -- "$__skerry_name" >|"$__skerry_dir/scratch" || __skerry_unread=y
    builtin mapfile -t __skerry_lines <"$__skerry_dir/scratch"
    builtin printf -v __skerry_text '%s\n' "${__skerry_lines[@]}"
    builtin printf 'builtin eval -- %s\n' "${__skerry_text@Q}"
    [[ $__skerry_entry == 'declare -f '* ]] || builtin printf 'builtin %s\n' "$__skerry_entry"
  done
}

__skerry_write_aliases() {
  builtin local __skerry_name
  for __skerry_name in "${!BASH_ALIASES[@]}"; do
    __skerry_name+==${BASH_ALIASES[$__skerry_name]}
    builtin printf 'builtin alias -- %s\n' "${__skerry_name@Q}"
  done
}

# The steps before `save` are in the trap itself, at the top level, where traps on ERR are visible. In POSIX mode, `set` and
# `unset` take precedence over functions, so that a function named `builtin` can be removed; backslashes prevent aliases.
__skerry_end='{
  __skerry_status=$? __skerry_options=$SHELLOPTS __skerry_shopts=$BASHOPTS POSIXLY_CORRECT=y
  \set +exu
  \unset -f builtin
  \set +o posix
  \builtin trap - EXIT DEBUG RETURN
  \builtin trap -p >|"$__skerry_dir/scratch" || __skerry_unread=y
  \builtin mapfile -t __skerry_lines <"$__skerry_dir/scratch"
  \builtin printf -v __skerry_signals "%s\n" "${__skerry_lines[@]}"
  \builtin trap - ERR
  \__skerry_save
} >/dev/null 2>&1
\__skerry_status
\builtin eval "${__skerry_exit-}"'
__skerry_status() { builtin return "${__skerry_status:-0}"; }

{ # one block: bash parses it before the user's aliases take effect
  for __skerry_name in "${__skerry_gone[@]}"; do builtin unset -v "$__skerry_name"; done
  __skerry_go_there
  __skerry_hand_over
  __skerry_choose_shopts "${__skerry_shopts-$BASHOPTS}"
  builtin eval "${__skerry_signals-}" >/dev/null 2>&1
  if [[ $__skerry_once ]]; then builtin unset -f trap; else builtin trap "$__skerry_end" EXIT; fi
  if [[ ${__skerry_status-0} == 0 ]]; then
    __skerry_choose_options "${__skerry_options-$SHELLOPTS}" 0
  else # in a list, a failure does not end the shell
    __skerry_choose_options "${__skerry_options-$SHELLOPTS}" "$__skerry_status" && builtin :
  fi
}
