package config

import (
	"strconv"
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
// there are no values then.
func Explain(environ []string) ([]Effective, error) {
	c, err := Load(Show, environ)
	if err != nil {
		return nil, err
	}
	return explain(c, environ), nil
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
