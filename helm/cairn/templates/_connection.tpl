{{/* Where engines find the nodes. */}}
{{- define "cairn.connectionAddress" -}}
{{- $name := include "cairn.name" . -}}
{{- if gt (int .Values.cache.replicas) 1 -}}
dns:{{ $name }}-cache-peers.{{ .Release.Namespace }}.svc:7400
{{- else -}}
{{ $name }}-cache.{{ .Release.Namespace }}.svc:7400
{{- end -}}
{{- end -}}

{{/* The settings that all adapters of engines have (docs/program/engines/vllm.md), as JSON. */}}
{{- define "cairn.connectionSettings" -}}
{{- $settings := dict "address" (include "cairn.connectionAddress" .) -}}
{{- if gt (int .Values.cache.replicas) 1 -}}
{{- with .Values.cache.cluster.zone }}{{ $_ := set $settings "zone" . }}{{ end -}}
{{- end -}}
{{- if include "cairn.hasTls" . -}}
{{- range $key, $file := dict "tls_ca" "ca.crt" "tls_cert" "tls.crt" "tls_key" "tls.key" -}}
{{- $_ := set $settings $key (printf "/etc/cairn-tls/%s" $file) -}}
{{- end -}}
{{- /* Certificates have the name of the Service for clients. */ -}}
{{- $_ := set $settings "tls_server_name" (printf "%s-cache.%s.svc" (include "cairn.name" .) .Release.Namespace) -}}
{{- end -}}
{{ merge $settings .Values.connection.settings | toJson }}
{{- end -}}

{{/* JSON that stays what it is between single quotes of a shell. */}}
{{- define "cairn.shellJson" -}}
{{ toJson . | replace "'" "\\u0027" }}
{{- end -}}
