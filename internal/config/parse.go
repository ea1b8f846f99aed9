package config

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// parsers returns one parser for each type of a setting. Their errors continue
// the sentence `LOCKGATE_X is "value": …`.
func parsers() map[reflect.Type]env.ParserFunc {
	return map[reflect.Type]env.ParserFunc{
		reflect.TypeFor[time.Duration](): func(v string) (any, error) { return parseDuration(v) },
		reflect.TypeFor[int](): func(v string) (any, error) {
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, errors.New("write a whole number")
			}
			return n, nil
		},
		reflect.TypeFor[bool](): func(v string) (any, error) {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return nil, errors.New("write true or false")
			}
			return b, nil
		},
		reflect.TypeFor[OnBusy]():      choice(Skip, Wait, Fail),
		reflect.TypeFor[OnLost]():      choice(Stop, Continue),
		reflect.TypeFor[SidecarKind](): choice(Native, Plain),
		reflect.TypeFor[logFormat]():   choice[logFormat](LogAuto, LogJSON, LogText),
		reflect.TypeFor[TLS]():         choice(TLSDisable, TLSPrefer, TLSRequire, TLSVerifyCA, TLSVerifyFull),
		reflect.TypeFor[logLevel](): func(v string) (any, error) {
			v = strings.ToLower(v)
			if _, err := choice("debug", "info", "warn", "error")(v); err != nil {
				return nil, err
			}
			var level slog.Level
			err := level.UnmarshalText([]byte(v))
			return logLevel(level), err
		},
	}
}

// choice returns a parser that takes one of the words.
func choice[T ~string](words ...T) env.ParserFunc {
	return func(v string) (any, error) {
		list := ""
		for i, w := range words {
			if v == string(w) {
				return w, nil
			}
			switch i {
			case 0:
			case len(words) - 1:
				list += " or "
			default:
				list += ", "
			}
			list += string(w)
		}
		return nil, fmt.Errorf("write %s", list)
	}
}

// Other ways to write durations. They are compiled when one was written wrongly:
// every start of the program would pay for it otherwise.
const (
	bareNumber = `^[0-9]{1,9}$`
	dayWeek    = `^([0-9]{1,4})([dw])$`
	isoForm    = `^P(?:([0-9]{1,4})D)?(?:T(?:([0-9]{1,6})H)?(?:([0-9]{1,6})M)?(?:([0-9]{1,6})S)?)?$`
)

// parseDuration reads a duration in Go's form. Its error shows the Go form of
// the other ways in which people write durations.
func parseDuration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err == nil {
		return d, nil
	}
	if regexp.MustCompile(bareNumber).MatchString(v) {
		return 0, fmt.Errorf("a duration has a unit; %ss is seconds, %sm is minutes", v, v)
	}
	if m := regexp.MustCompile(dayWeek).FindStringSubmatch(v); m != nil {
		hours, _ := strconv.Atoi(m[1])
		hours *= 24
		if m[2] == "w" {
			hours *= 7
		}
		return 0, fmt.Errorf("the longest unit is the hour; write %dh", hours)
	}
	if m := regexp.MustCompile(isoForm).FindStringSubmatch(v); m != nil {
		var sum time.Duration
		for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
			n, _ := strconv.Atoi(m[i+1])
			sum += time.Duration(n) * unit
		}
		if sum > 0 {
			return 0, fmt.Errorf("write it as %s", short(sum))
		}
	}
	return 0, errors.New("write a duration such as 90s, 2m or 1h30m")
}

// short is a duration without the zeros that its String has: 2m, not 2m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
