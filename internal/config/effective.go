package config

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Effective is the value that one setting has, and where it came from. It has no
// secret in it.
type Effective struct {
	Name  string `json:"name"`
	Value string `json:"value"` // empty when there is none
	From  string `json:"from"`  // for people
}

// Where a value comes from.
const (
	fromEnvironment = "environment"
	fromDefault     = "default"
	notSet          = "not set"
)

// Explain returns the value of every setting that this version knows, in the
// order of the documentation. The error is an [*Error] that lists every problem;
// the values are then what the environment says and the defaults, as far as they
// can be told.
func Explain(environ []string) ([]Effective, error) {
	c, err := Load(Show, environ)
	wrong, ok := errors.AsType[*Error](err)
	if !ok {
		return explain(c, environ), err
	}
	return explainWrong(environ, wrong.Problems), err
}

// explainWrong is explain for settings that are not right as a whole.
func explainWrong(environ, problems []string) []Effective {
	vars := toMap(environ)
	var list []Effective
	for _, f := range fields() {
		value, set := vars[f.name]
		e := Effective{Name: f.name, Value: value, From: fromEnvironment}
		switch {
		case !set && f.fallback != "":
			e.Value, e.From = f.fallback, fromDefault
		case !set:
			e.From = notSet
		case value != "" && (f.name == varURL || f.name == varPassword):
			e.Value = redacted // whole: what is wrong may be a piece of the password
		}
		if slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, f.name+" ") }) {
			e.From += ": wrong"
		} else if f.later {
			continue
		}
		if firstUnprintable(e.Value) >= 0 {
			e.Value = strconv.Quote(e.Value)
		}
		list = append(list, e)
	}
	return list
}

func explain(c Config, environ []string) []Effective {
	l := loader{vars: toMap(environ)}
	fromTTL := map[string]time.Duration{
		varRenewEvery: c.RenewEvery, varStopGrace: c.StopGrace, varSafetyMargin: c.SafetyMargin,
	}
	var list []Effective
	for _, f := range fields() {
		if f.later {
			continue
		}
		e := Effective{Name: f.name, Value: l.vars[f.name], From: fromEnvironment}
		derived, isDerived := fromTTL[f.name]
		switch {
		case f.name == varURL:
			e.Value = c.Database.String()
			switch {
			case c.DatabaseIsDefault:
				e.From = fromDefault + ": this user, this machine only"
			case !l.isSet(varURL):
				e.From = varURLFile
			}
		case f.name == varName && e.Value != "" && e.Value != c.Name:
			e.Value, e.From = c.Name, fromEnvironment+": "+quote(e.Value)
		case f.name == varPassword && e.Value != "":
			e.Value = redacted
		case f.name == varTerminationLog && !c.TerminationLogIsSet:
			e.Value, e.From = c.TerminationLog, fromDefault+", where it is writable"
		case e.Value != "":
		case isDerived:
			e.Value, e.From = short(derived), fromDefault+": from "+varTTL
		case f.fallback != "":
			e.Value, e.From = f.fallback, fromDefault
		case l.isSet(f.name):
			e.From = fromEnvironment + ", empty"
		default:
			e.From = notSet
		}
		if firstUnprintable(e.Value) >= 0 {
			e.Value = strconv.Quote(e.Value)
		}
		list = append(list, e)
	}
	return list
}
