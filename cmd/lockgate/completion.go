package main

import (
	"fmt"
	"slices"
	"strings"
)

// runCompletion prints the script that completes our command line in a shell.
func (p *program) runCompletion(args []string) int {
	opts, err := parseOptions(args, nil)
	if err != nil {
		return p.wrongUsage("completion: %v", err)
	}
	if len(opts.rest) > 1 {
		return p.wrongUsage("completion: unexpected argument %q", opts.rest[1])
	}
	shell := ""
	if len(opts.rest) == 1 {
		shell = opts.rest[0]
	}
	switch shell {
	case "bash":
		return p.print(nil, bashCompletion())
	case "zsh":
		return p.print(nil, zshCompletion())
	case "fish":
		return p.print(nil, fishCompletion())
	case "":
		return p.wrongUsage("completion: for which shell? bash, zsh or fish")
	}
	return p.wrongUsage("completion: there is no script for %q; there are bash, zsh and fish", shell)
}

// completionWords are the words that may follow a command.
func completionWords(s spec) []string {
	var words []string
	for _, o := range s.options {
		words = append(words, "--"+o.name)
		if o.letter != "" {
			words = append(words, "-"+o.letter)
		}
	}
	words = append(words, "--help")
	switch s.name {
	case "completion":
		words = append(words, "bash", "zsh", "fish")
	case helpCommand:
		words = append(words, commandNames()...)
	}
	return words
}

func commandNames() []string {
	var names []string
	for _, s := range specs() {
		names = append(names, s.name)
	}
	return names
}

// wrapping are the commands after which a CMD stands.
func wrapping() string {
	var names []string
	for _, s := range specs() {
		if s.startsAt {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, "|")
}

// bashCompletion needs nothing but bash itself. Before 4.0 there is no compopt, and
// names of folders get no slash.
func bashCompletion() string {
	var words strings.Builder
	for _, s := range specs() {
		fmt.Fprintf(&words, "    %s) words='%s' ;;\n", s.name, strings.Join(completionWords(s), " "))
	}
	return fmt.Sprintf(`# bash completion for lockgate: source <(lockgate completion bash)
_lockgate() {
  local cur=${COMP_WORDS[COMP_CWORD]} cmd=${COMP_WORDS[1]} words i=2
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    COMPREPLY=($(compgen -W '%s --help --version' -- "$cur"))
    return
  fi
  case $cmd in
  %s)
    [ "${COMP_WORDS[2]}" = -- ] && i=3
    if [ "$COMP_CWORD" -gt "$i" ]; then
      compopt -o filenames 2>/dev/null
      COMPREPLY=($(compgen -f -- "$cur"))
      return
    elif [ "$COMP_CWORD" -eq 3 ] || [[ $cur != -* ]]; then
      COMPREPLY=($(compgen -c -- "$cur"))
      [ "$COMP_CWORD" -eq 2 ] && [ -z "$cur" ] && COMPREPLY=(-- "${COMPREPLY[@]}")
      return
    fi
    words='-- --help'
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return
    ;;
  esac
  case ${COMP_WORDS[COMP_CWORD-1]} in
  -o|--output) COMPREPLY=($(compgen -W 'text json' -- "$cur")); return ;;
  esac
  case $cmd in
  install)
    if [[ $cur != -* ]]; then
      compopt -o filenames 2>/dev/null
      COMPREPLY=($(compgen -d -- "$cur"))
      return
    fi
    ;;
  esac
  case $cmd in
%s  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _lockgate lockgate
`, strings.Join(commandNames(), " "), wrapping(), words.String())
}

func zshCompletion() string {
	var commands, words strings.Builder
	for _, s := range specs() {
		fmt.Fprintf(&commands, "    '%s:%s'\n", s.name, strings.ReplaceAll(s.short, "'", `'\''`))
		if s.startsAt || s.name == "install" {
			continue
		}
		fmt.Fprintf(&words, "    %s) compadd -- %s ;;\n", s.name, strings.Join(completionWords(s), " "))
	}
	return fmt.Sprintf(`#compdef lockgate
# zsh completion for lockgate: source <(lockgate completion zsh)
_lockgate() {
  local -a commands
  commands=(
%s  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
  %s)
    if [[ $words[3] == -- ]] && (( CURRENT > 3 )); then
      shift 3 words
      (( CURRENT -= 3 ))
    elif [[ $PREFIX == -* ]] && (( CURRENT == 3 )); then
      compadd -- -- --help
      return
    else
      shift 2 words
      (( CURRENT -= 2 ))
    fi
    _normal
    return
    ;;
  esac
  case $words[CURRENT-1] in
  -o|--output) compadd text json; return ;;
  esac
  case $words[2] in
    install) _path_files -/ ;;
%s  esac
}
compdef _lockgate lockgate
# As a file in fpath it is read at the first use, and has to answer that too.
if [ "$funcstack[1]" = _lockgate ]; then
  _lockgate "$@"
fi
`, commands.String(), wrapping(), words.String())
}

func fishCompletion() string {
	var b strings.Builder
	b.WriteString("# fish completion for lockgate: lockgate completion fish | source\n")
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `\'`) + "'" }
	b.WriteString("complete -c lockgate -f\n")
	for _, s := range specs() {
		fmt.Fprintf(&b, "complete -c lockgate -n __fish_use_subcommand -a %s -d %s\n", s.name, quote(s.short))
		seen := "'__fish_seen_subcommand_from " + s.name + "'"
		if s.startsAt {
			fmt.Fprintf(&b, "complete -c lockgate -n %s -x -a '(__fish_complete_subcommand --fcs-skip=2)'\n", seen)
			continue
		}
		for _, o := range s.options {
			line := fmt.Sprintf("complete -c lockgate -n %s -l %s -d %s", seen, o.name, quote(o.doc))
			if o.letter != "" {
				line += " -s " + o.letter
			}
			switch {
			case len(o.among) > 0:
				line += " -x -a " + quote(strings.Join(o.among, " "))
			case o.value != "":
				line += " -x"
			}
			b.WriteString(line + "\n")
		}
		switch s.name {
		case "install":
			fmt.Fprintf(&b, "complete -c lockgate -n %s -x -a '(__fish_complete_directories)'\n", seen)
		case "completion", helpCommand:
			words := slices.DeleteFunc(completionWords(s), func(w string) bool { return strings.HasPrefix(w, "-") })
			fmt.Fprintf(&b, "complete -c lockgate -n %s -a %s\n", seen, quote(strings.Join(words, " ")))
		}
	}
	b.WriteString("complete -c lockgate -s h -l help -d 'help of this command'\n")
	return b.String()
}
