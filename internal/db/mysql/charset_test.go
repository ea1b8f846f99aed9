package mysql

import (
	"errors"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
)

// What init_connect says reaches every account that is not an administrator's,
// and only those, so two clients of one lock can have sessions that differ.
func TestNamesAreTheSameBytesWhateverCharsetTheServerStartsSessionsWith(t *testing.T) {
	names := []string{
		"café", "nightly 🚀", `it's "quoted" \ and \' more`,
		"\xe7\xb8\x97'; x",       // with \' behind it, GBK and SJIS read a character that swallows the backslash
		"\xe7\xb8\x97\\'; -- \"", // the same for a backslash of its own
	}
	for _, charset := range []string{"latin1", "gbk", "sjis", "utf8mb3"} {
		t.Run(charset, func(t *testing.T) {
			p := newPlace(t, server)
			plain := open(t, p.options())
			used(t, plain, "makes the table and the connection")
			server.SetGlobal(t, "init_connect", "'SET NAMES "+charset+"'")
			odd, other := open(t, p.options()), open(t, p.options())

			for i, name := range names {
				holder, others := odd, []*Store{other, plain}
				if i%2 == 1 {
					holder, others = plain, []*Store{odd, other}
				}
				req := ask(name, "owner of "+name)
				req.Run = "run of " + name
				lease, err := holder.TryAcquire(t.Context(), req)
				if err != nil {
					t.Errorf("TryAcquire(%q) = %v; want a lease", name, err)
					continue
				}
				for _, store := range others {
					_, err := store.TryAcquire(t.Context(), ask(name, "b"))
					if held, ok := errors.AsType[*db.HeldError](err); !ok || held.Owner != req.Owner || held.Run != req.Run {
						t.Errorf("TryAcquire(%q) of what is held = %v; want it held by %q", name, err, req.Owner)
					}
				}
				renew(t, holder, lease)
				rows, err := others[0].List(t.Context(), name)
				if err != nil || len(rows) != 1 || rows[0].Name != name {
					t.Errorf("List(%q) = %+v, %v; want its row", name, rows, err)
				}
			}
			rows, err := plain.List(t.Context())
			if err != nil || len(rows) != 1+len(names) {
				t.Errorf("List() = %+v, %v; want %d rows", rows, err, 1+len(names))
			}
		})
	}
}
