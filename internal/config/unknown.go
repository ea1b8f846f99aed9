package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Names that a Kubernetes Service called lockgate or lockgate-x injects into
// every pod of its namespace. serviceURL is as well what someone would call a
// setting (LOCKGATE_DB_PORT), so there its value has to look the part.
//
// They are compiled when there is a name that is no setting.
const (
	serviceName = `^LOCKGATE_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)$`
	serviceURL  = `^LOCKGATE_[A-Z0-9_]+_PORT$`
	urlValue    = `^(?:tcp|udp|sctp)://`
)

// ours says that a name with our prefix is no mistake although it is no
// setting: what an outer lockgate leaves, what tests use, what Kubernetes
// injects.
func ours(name, value string) bool {
	switch {
	case name == TokenVar, name == LockVar,
		strings.HasPrefix(name, Prefix+"TEST_"), strings.HasPrefix(name, Prefix+"E2E_"):
		return true
	case name == Prefix+"PORT", matches(serviceName, name):
		return true
	}
	return matches(serviceURL, name) && matches(urlValue, value)
}

func matches(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }

// refuseUnknown reports every LOCKGATE_ name that nobody reads: a misspelled
// setting that is ignored is a setting that somebody believes in.
func (l *loader) refuseUnknown() {
	var unknown []string
	for name, value := range l.vars {
		known := slices.ContainsFunc(l.fields, func(f field) bool { return f.name == name })
		if strings.HasPrefix(name, Prefix) && !known && !ours(name, value) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		shown := name
		if firstUnprintable(name) >= 0 || len(name) > maxQuoted {
			shown = clip(name)
		}
		if nearest := l.nearest(name); nearest != "" {
			l.problems = append(l.problems, fmt.Sprintf("%s is not a setting; did you mean %s? Rename or unset it", shown, nearest))
		} else {
			l.problems = append(l.problems, fmt.Sprintf("%s is not a setting, nor like one; unset it (lockgate config lists them all)", shown))
		}
	}
}

// nearest returns the setting whose name is most like the given one, or nothing
// when half of the letters would have to be others.
func (l *loader) nearest(name string) string {
	name = strings.ToUpper(strings.TrimPrefix(name, Prefix))
	best, bestCost := "", 0
	for _, f := range l.fields {
		key := strings.TrimPrefix(f.name, Prefix)
		cost := 2 * Distance(name, key)
		// PASSWORD for DB_PASSWORD is a word left out, not three typing errors.
		if strings.HasSuffix(key, "_"+name) || strings.HasPrefix(key, name+"_") {
			cost = 1
		}
		// A word too many, as in TTL_SECONDS.
		if strings.HasPrefix(name, key+"_") || strings.HasSuffix(name, "_"+key) {
			cost = min(cost, 2)
		}
		if f.later {
			cost++ // of two equally near, the one that works
		}
		if best == "" || cost < bestCost {
			best, bestCost = f.name, cost
		}
	}
	if bestCost > len(name)+1 {
		return ""
	}
	return best
}

// Distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make a of b.
func Distance(a, b string) int {
	if len(a) > 2*maxQuoted {
		return len(a) // no setting is as long; do not spend time on it
	}
	before := make([]int, len(b)+1) // the row before the last one
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
