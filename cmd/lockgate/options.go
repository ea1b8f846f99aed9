package main

import (
	"fmt"
	"slices"
	"strings"
)

// option is one option of a command.
type option struct {
	name   string   // without its dashes; of one letter it takes one dash
	letter string   // another way to write it, -o for --output; may be empty
	value  string   // what it takes, as help shows it; empty for a switch
	among  []string // the values it takes, when not every value is one
	doc    string
}

// shown is the option as help and messages show it.
func (o option) shown() string {
	s := "--" + o.name
	if o.letter != "" {
		s = "-" + o.letter + ", " + s
	}
	if o.value != "" {
		s += " " + o.value
	}
	return s
}

// outputOption is how the commands that show something let choose the form.
func outputOption() option {
	return option{
		name: "output", letter: "o", value: "text|json", among: []string{"text", "json"},
		doc: "text for people (the default), or json for programs",
	}
}

// parsed are the options that were given, and what else.
type parsed struct {
	values map[string]string // by name; a switch that was given is there, and empty
	rest   []string
}

func (p parsed) has(name string) bool {
	_, ok := p.values[name]
	return ok
}

func (p parsed) json() bool { return p.values["output"] == "json" }

// parseOptions reads options and arguments in any order, up to --. It takes
// --name value, --name=value, -n value, -n=value and -nvalue.
func parseOptions(args []string, known []option) (parsed, error) {
	out := parsed{values: map[string]string{}}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			out.rest = append(out.rest, args...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			out.rest = append(out.rest, arg)
			continue
		}
		opt, value, glued := findOption(arg, known)
		if opt == nil {
			return out, fmt.Errorf("unknown option %q; known are: %s", arg, shownOptions(known))
		}
		if out.has(opt.name) {
			return out, fmt.Errorf("option %s is given twice", opt.shown())
		}
		switch {
		case opt.value == "" && glued:
			return out, fmt.Errorf("option --%s takes no value", opt.name)
		case opt.value == "" || glued:
		case len(args) == 0:
			return out, fmt.Errorf("option --%s needs a value: %s", opt.name, opt.value)
		default:
			value, args = args[0], args[1:]
		}
		if len(opt.among) > 0 && !slices.Contains(opt.among, value) {
			return out, fmt.Errorf("option --%s: %q is not one of: %s", opt.name, value, strings.Join(opt.among, ", "))
		}
		out.values[opt.name] = value
	}
	return out, nil
}

// findOption returns the option that an argument writes, and the value that is
// glued to it.
func findOption(arg string, known []option) (opt *option, value string, glued bool) {
	if long, ok := strings.CutPrefix(arg, "--"); ok {
		long, value, glued = strings.Cut(long, "=")
		i := slices.IndexFunc(known, func(o option) bool { return o.name == long })
		if i < 0 {
			return nil, "", false
		}
		return &known[i], value, glued
	}
	i := slices.IndexFunc(known, func(o option) bool { return o.letter != "" && strings.HasPrefix(arg[1:], o.letter) })
	if i < 0 {
		return nil, "", false
	}
	value = arg[1+len(known[i].letter):]
	return &known[i], strings.TrimPrefix(value, "="), value != ""
}

func shownOptions(known []option) string {
	var all []string
	for _, o := range known {
		all = append(all, o.shown())
	}
	return strings.Join(append(all, "-h, --help"), "; ")
}
