{{- define "mmx.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end }}

{{- define "mmx.labels" -}}
app.kubernetes.io/name: mmx-{{ .role }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "mmx.closed" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The paths of the daemon's keys. The key is read where Kubernetes has the
file itself: fleet.key beside ..data is a link, and links are refused. */ -}}
{{- define "mmx.keys" -}}
{{- if .root.Values.keys.own -}}
keys: [/etc/mmx/own/{{ .role }}.key]
identities: /etc/mmx/identities/..data/identities
{{- else -}}
keys:
{{- range .root.Values.keys.files }}
  - /etc/mmx/keys/..data/{{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The configuration of a role as YAML. Name and address of a pod are
arguments. What pods and policies have, too, is refused in `config`. */ -}}
{{- define "mmx.config" -}}
{{- $v := .root.Values -}}
{{- $given := (index $v .role).config -}}
{{- $role := .role -}}
{{- range $key, $value := dict "control.listen" "ports.control"
  "control.advertise" "ports.control" "transfer.ports" "ports.rows"
  "timeouts.drain" "drainSeconds" -}}
{{- $words := splitList "." $key -}}
{{- if hasKey (get $given (first $words) | default dict) (last $words) -}}
{{- fail (printf "%s.config has %s: set %s" $role $key $value) -}}
{{- end -}}
{{- end -}}
{{- $control := include "mmx.keys" . | fromYaml -}}
{{- $transfer := dict "devices" "all" -}}
{{- if eq .role "encoded" -}}
{{- $_ := set $control "listen" (printf "tcp://0.0.0.0:%v" $v.ports.control) -}}
{{- else -}}
{{- $_ := set $control "allow" $v.allow -}}
{{- $range := printf "%v-%v" $v.ports.rows.first $v.ports.rows.last -}}
{{- $_ := set $transfer "ports" $range -}}
{{- end -}}
{{- $conf := dict "socket" (dict "group" "mmx-engine") "control" $control
  "transfer" $transfer "pools" $v.pools
  "timeouts" (dict "drain" (printf "%vs" $v.drainSeconds)) -}}
{{- mergeOverwrite $conf (deepCopy $given) | toYaml }}
{{- end }}
