package config

import (
	"log/slog"
	"reflect"
	"strings"
	"time"
)

// settings is what the environment says, parsed but not yet compared. It is
// also the table of the documentation, in its order. The tags:
//
//	env         the name without its prefix
//	envDefault  the default; none means that it is derived, or that there is none
//	shown       the default as people read it, where envDefault does not say it
//	doc         what it means
//	by          the commands that read it; none means those that take locks, and
//	            for what leads to the database also those that look at locks
//	empty       "ok" when it may be set to nothing
//	later       "yes" when this version refuses it
type settings struct {
	Name string `env:"NAME" shown:"required" doc:"the lock's name, 1 to 255 bytes of printable UTF-8 without blanks at its ends; ${VAR} expands from the environment, an unset one is an error; $${ stands for a plain ${"`

	DBURL          string `env:"DB_URL" shown:"required; run outside any container has a default" doc:"where the locks are: mysql://user@host:3306/db (or mariadb://, which is the same) or sqlite:///path; other characters than letters and digits are percent-encoded"`
	DBURLFile      string `env:"DB_URL_FILE" doc:"a file that holds the URL; read again for each new connection"`
	DBUser         string `env:"DB_USER" doc:"the user, instead of in the URL"`
	DBPassword     string `env:"DB_PASSWORD" doc:"the password, instead of in the URL"`
	DBPasswordFile string `env:"DB_PASSWORD_FILE" doc:"a file that holds the password; read again for each new connection"`
	DBTLS          TLS    `env:"DB_TLS" envDefault:"prefer" doc:"disable, prefer, require, verify-ca or verify-full; only the last two check who the server is"`
	DBCAFile       string `env:"DB_CA_FILE" shown:"the system's" doc:"the authorities that the server's certificate is checked against, as PEM; read again for each new connection"`
	DBCertFile     string `env:"DB_CERT_FILE" doc:"our certificate, as PEM, for a server that asks for one; read again for each new connection"`
	DBKeyFile      string `env:"DB_KEY_FILE" doc:"the key of our certificate, as PEM without a passphrase; read again for each new connection"`
	DBTable        string `env:"DB_TABLE" envDefault:"lockgate_locks" doc:"the table that holds the locks"`
	DBLayout       string `env:"DB_LAYOUT" shown:"lockgate" later:"yes" doc:"the rules of a table that others use too"`
	DBTimeZone     string `env:"DB_TIME_ZONE" shown:"the server's" later:"yes" doc:"the zone that old clients of a foreign table write in"`
	DBAutoMigrate  bool   `env:"DB_AUTO_MIGRATE" envDefault:"true" doc:"create the table when it is missing and we may"`

	OnBusy       OnBusy        `env:"ON_BUSY" envDefault:"skip" doc:"what to do when the lock is busy: skip, wait or fail"`
	Run          string        `env:"RUN" empty:"ok" doc:"the run that this process belongs to, in a Job the label batch.kubernetes.io/controller-uid; a holder of the same run is waited for, whatever ON_BUSY says: the longer of WAIT_TIMEOUT and the rest of its lease"`
	WaitTimeout  time.Duration `env:"WAIT_TIMEOUT" envDefault:"5m" doc:"how long wait waits; 0 waits for ever"`
	PollEvery    time.Duration `env:"POLL_EVERY" envDefault:"1s" doc:"how often a waiting contender asks"`
	StartTimeout time.Duration `env:"START_TIMEOUT" envDefault:"1m" by:"sidecar,init,run,migrate" doc:"how long a database that cannot be reached is tried again"`

	TTL          time.Duration `env:"TTL" envDefault:"2m" doc:"life of the lease without a renewal; 2s to 720h"`
	RenewEvery   time.Duration `env:"RENEW_EVERY" shown:"TTL/6" doc:"how often the lease is renewed; also the longest a store call may take"`
	StopGrace    time.Duration `env:"STOP_GRACE" shown:"10s or TTL/4, the smaller" doc:"from SIGTERM to SIGKILL where lockgate decides to stop CMD"`
	SafetyMargin time.Duration `env:"SAFETY_MARGIN" shown:"5s or TTL/8, the smaller" doc:"CMD is dead this long before the lease ends; at least 200ms"`
	MinHold      time.Duration `env:"MIN_HOLD" envDefault:"0" doc:"after CMD succeeded, the lock stays taken until this long after it was acquired, but not for the same run; not for init and not with WRAPPED=false"`
	MaxHold      time.Duration `env:"MAX_HOLD" envDefault:"0" doc:"at this age of the lock CMD is stopped, then the lock is released; 0 for no limit"`
	OnLost       OnLost        `env:"ON_LOST" envDefault:"stop" doc:"what happens to CMD when the lock is lost: stop, or continue, which gives up the promise that only one runs"`
	SkipExitCode int           `env:"SKIP_EXIT_CODE" envDefault:"0" doc:"the exit code of a skip, 0 to 125"`

	Wrapped        bool          `env:"WRAPPED" envDefault:"true" by:"sidecar,init" doc:"whether main runs under lockgate exec; with false main is gated by its probes or its own script, and the pod needs restartPolicy: Never"`
	Sidecar        SidecarKind   `env:"SIDECAR" envDefault:"native" by:"sidecar" doc:"the kind of container the sidecar is: native or plain"`
	MainTimeout    time.Duration `env:"MAIN_TIMEOUT" envDefault:"10m" by:"sidecar" doc:"a sidecar that nobody asks exits after this long"`
	VerdictTimeout time.Duration `env:"VERDICT_TIMEOUT" envDefault:"2m" by:"sidecar,init,run,exec" doc:"how old the last sign of the holder may be while exec waits; one that works gives a sign every 5s"`
	Dir            string        `env:"DIR" envDefault:"/lockgate" by:"sidecar,init,exec,check,status" doc:"the gate directory that sidecar and main share; an absolute path"`

	Cluster      string `env:"CLUSTER" empty:"ok" doc:"the cluster's name, for people"`
	PodNamespace string `env:"POD_NAMESPACE" empty:"ok" doc:"from the downward API"`
	PodName      string `env:"POD_NAME" empty:"ok" doc:"from the downward API"`
	PodUID       string `env:"POD_UID" empty:"ok" by:"sidecar,init,run,exec,check,status" doc:"from the downward API"`
	NodeName     string `env:"NODE_NAME" empty:"ok" doc:"from the downward API"`

	TerminationLog string    `env:"TERMINATION_LOG" shown:"/dev/termination-log where writable; none for run" doc:"the file in which the holder leaves one line at its end: the outcome, the lock, the other holder"`
	LogFormat      logFormat `env:"LOG_FORMAT" envDefault:"auto" by:"sidecar,init,run,exec,status,unlock,migrate" doc:"auto, json or text; auto is text on a terminal and json elsewhere"`
	LogLevel       logLevel  `env:"LOG_LEVEL" envDefault:"info" by:"sidecar,init,run,exec,status,unlock,migrate" doc:"debug, info, warn or error"`
	Listen         string    `env:"LISTEN" shown:"off" later:"yes" doc:"the address of the status server"`
}

// These exist so that their values are checked like every other choice.
// slog.Level would parse itself, and accept "warn+1".
type (
	logFormat string
	logLevel  slog.Level
)

// Setting describes one setting for people.
type Setting struct {
	Name      string    // the whole variable, with its prefix
	Default   string    // as people read it; empty when there is none
	Doc       string    // what it means
	Commands  []Command // the commands that read it
	Supported bool      // false when this version refuses it
}

// Settings returns every setting, in the order of the documentation.
func Settings() []Setting {
	fields := fields()
	list := make([]Setting, len(fields))
	for i, f := range fields {
		list[i] = Setting{
			Name:      f.name,
			Default:   f.shown,
			Doc:       f.doc,
			Commands:  f.by,
			Supported: !f.later,
		}
	}
	return list
}

// field is one field of settings, its tags read.
type field struct {
	goName   string
	name     string // the whole variable
	fallback string // the default that env knows
	shown    string
	doc      string
	by       []Command
	emptyOK  bool
	later    bool
}

func fields() []field {
	t := reflect.TypeFor[settings]()
	list := make([]field, t.NumField())
	for i := range list {
		f := t.Field(i)
		by := []Command{Sidecar, Init, Run}
		if strings.HasPrefix(f.Tag.Get("env"), "DB_") {
			by = append(by, Status, Unlock, Migrate)
		}
		if tag, ok := f.Tag.Lookup("by"); ok {
			by = nil
			for c := range strings.SplitSeq(tag, ",") {
				by = append(by, Command(c))
			}
		}
		fallback := f.Tag.Get("envDefault")
		shown, ok := f.Tag.Lookup("shown")
		if !ok {
			shown = fallback
		}
		by = append(by, Show)
		list[i] = field{
			goName:   f.Name,
			name:     Prefix + f.Tag.Get("env"),
			fallback: fallback,
			shown:    shown,
			doc:      f.Tag.Get("doc"),
			by:       by,
			emptyOK:  f.Tag.Get("empty") == "ok",
			later:    f.Tag.Get("later") == "yes",
		}
	}
	return list
}
