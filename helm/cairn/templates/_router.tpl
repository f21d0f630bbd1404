{{/* The router's settings, as the chart computes them. */}}
{{- define "cairn.routerComputed" -}}
{{- $http := .Values.router.http -}}
{{- $mutual := .Values.router.clientCertificates -}}
{{- if $mutual }}
listen: 0.0.0.0:7600
{{- else }}
# Over gRPC a caller names its tenant itself: without certificates only the pod may call.
listen: 127.0.0.1:7600
{{- end }}
admin:
  listen: 0.0.0.0:7601
http:
  listen: 0.0.0.0:8000
  {{- if $http.apiKeysSecret }}
  api_keys: /etc/cairn-keys/keys
  {{- end }}
  {{- with $http.tenantHeader }}
  tenant_header: {{ . | quote }}
  {{- end }}
  {{- with $http.corsOrigins }}
  cors_origins: {{ toJson . }}
  {{- end }}
{{- if .Values.router.picker.enabled }}
picker:
  listen: 0.0.0.0:9002
{{- end }}
{{- if include "cairn.routerModelClaim" . }}
model: {{ printf "/models/%s" (include "cairn.routerModelPath" .) | quote }}
{{- end }}
{{- with .Values.router.modelId }}
model_id: {{ . | quote }}
{{- end }}
{{- with .Values.router.aliases }}
aliases: {{ toJson . }}
{{- end }}
workers: {{ include "cairn.routerWorkers" . }}
{{- if include "cairn.routesEngines" . }}
engines:
  tokens: {{ .Values.router.engines.tokens }}
  block_tokens: {{ .Values.router.engines.blockTokens }}
  cache_tokens: {{ .Values.router.engines.cacheTokens | int64 }}
  {{- with .Values.router.engines.events }}
  events: {{ toJson . }}
  {{- end }}
  {{- if .Values.router.engines.apiKeySecret }}
  api_key_file: /etc/cairn-engines/key
  {{- end }}
{{- end }}
{{- with include "cairn.routerCache" . }}
cache: {{ . | quote }}
{{- end }}
policy: {{ .Values.router.policy }}
tenant: {{ .Values.router.tenant | quote }}
max_wait: {{ .Values.router.maxWait }}
max_requests: {{ .Values.router.maxRequests | int64 }}
threads: {{ .Values.router.threads }}
index: {{ .Values.router.indexMiB | int64 }}MiB
token_cache: {{ .Values.router.tokenCacheMiB | int64 }}MiB
{{- if and $mutual (include "cairn.hasPolicy" .) }}
auth:
  policy: /etc/cairn/policy.yaml
{{- end }}
log:
  level: {{ .Values.router.logLevel }}
  format: json
{{- if include "cairn.hasTls" . }}
workers_tls:
  ca: /etc/cairn-tls/ca.crt
  cert: /etc/cairn-tls/tls.crt
  key: /etc/cairn-tls/tls.key
  {{- if not .Values.router.workers }}
  # The pods' certificates have the name of the Service.
  server_name: {{ include "cairn.name" . }}-worker.{{ .Release.Namespace }}.svc
  {{- end }}
cache_tls:
  ca: /etc/cairn-tls/ca.crt
  cert: /etc/cairn-tls/tls.crt
  key: /etc/cairn-tls/tls.key
  {{- if not .Values.router.cacheAddress }}
  server_name: {{ include "cairn.name" . }}-cache.{{ .Release.Namespace }}.svc
  {{- end }}
{{- end }}
tls:
{{- if include "cairn.hasTls" . }}
  cert: /etc/cairn-tls/tls.crt
  key: /etc/cairn-tls/tls.key
  {{- if $mutual }}
  client_ca: /etc/cairn-tls/ca.crt
  {{- end }}
{{- else }}
  allow_plaintext_beyond_loopback: true
{{- end }}
{{- end -}}

{{- define "cairn.routerConfig" -}}
{{- include "cairn.config" (dict "root" . "role" "router" "computed" (include "cairn.routerComputed" .)) -}}
{{- end -}}

{{/* What the schema cannot say of the router's values. */}}
{{- define "cairn.checkRouter" -}}
{{- if not (or .Values.router.workers .Values.worker.enabled) -}}
{{- fail "router: set worker.enabled=true, or router.workers to addresses HOST:PORT" -}}
{{- end -}}
{{- if not (or .Values.router.model.existingClaim .Values.worker.model.existingClaim (include "cairn.routesEngines" .)) -}}
{{- fail "router.model.existingClaim: name the volume with the GGUF file that the workers run" -}}
{{- end -}}
{{- if and .Values.worker.cacheAddress (not .Values.router.cacheAddress) (not (include "cairn.routesEngines" .)) -}}
{{- fail "router.cacheAddress: set it, because worker.cacheAddress is set: HOST:PORT of nodes of the same cluster, or none" -}}
{{- end -}}
{{- if and .Values.router.http.tenantHeader (not .Values.router.callers) -}}
{{- fail "router.callers: expected who the gateway is, because router.http.tenantHeader is set: whoever else reaches the port could name any tenant" -}}
{{- end -}}
{{- if and .Values.router.http.tenantHeader .Values.router.http.apiKeysSecret -}}
{{- fail "router.http: tenantHeader and apiKeysSecret contradict each other" -}}
{{- end -}}
{{- range .Values.router.workers -}}
{{- if ne (regexMatch "^(dns:)?https?://" .) (ne (include "cairn.routesEngines" $) "") -}}
{{- fail (printf "router.workers: got %s beside %s, expected all HOST:PORT, or all http://HOST:PORT or https://HOST:PORT" . (first $.Values.router.workers)) -}}
{{- end -}}
{{- if and $.Values.router.picker.enabled (not (regexMatch "^(dns:http://[^_][^:]*:[0-9]+|http://([0-9.]+|\\[[0-9a-f:]+\\])(:[0-9]+)?)$" .)) -}}
{{- fail (printf "router.workers: got %s, expected http://IP:PORT or dns:http://NAME:PORT, because router.picker.enabled=true: a gateway gets addresses, not names" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.router.engines.events -}}
{{- if not (has (first (splitList "=" .)) $.Values.router.workers) -}}
{{- fail (printf "router.engines.events: got %s, expected one of router.workers before the =" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.router.picker.enabled (not (include "cairn.routesEngines" .)) -}}
{{- fail "router.picker.enabled: set router.workers to engines, http://IP:PORT each: a gateway can send requests to nothing else" -}}
{{- end -}}
{{- end -}}

{{/* Not empty: the router's workers are engines with OpenAI's API. */}}
{{- define "cairn.routesEngines" -}}
{{- with .Values.router.workers }}{{ if regexMatch "^(dns:)?https?://" (first .) }}engines{{ end }}{{ end -}}
{{- end -}}

{{/* The volume with the router's model. Empty: there is none, before engines. */}}
{{- define "cairn.routerModelClaim" -}}
{{- if .Values.router.model.existingClaim -}}
{{ .Values.router.model.existingClaim }}
{{- else if not (include "cairn.routesEngines" .) -}}
{{ .Values.worker.model.existingClaim }}
{{- end -}}
{{- end -}}

{{- define "cairn.routerModelPath" -}}
{{- if .Values.router.model.existingClaim -}}
{{ .Values.router.model.path }}
{{- else -}}
{{ .Values.worker.model.path }}
{{- end -}}
{{- end -}}

{{/* A JSON list: a router calls each worker by a name of its own, and follows those that DNS names. */}}
{{- define "cairn.routerWorkers" -}}
{{- if .Values.router.workers -}}
{{ toJson .Values.router.workers }}
{{- else -}}
{{- $service := ternary "_worker._tcp.%s-cache-peers.%s.svc" "_grpc._tcp.%s-worker-pods.%s.svc" .Values.worker.besideNode -}}
{{ list (printf (printf "dns:%s" $service) (include "cairn.name" .) .Release.Namespace) | toJson }}
{{- end -}}
{{- end -}}

{{/* Nodes whose events the router follows. A few of a cluster are enough: they name the others. */}}
{{- define "cairn.routerCache" -}}
{{- if or (eq .Values.router.cacheAddress "none") (and (not .Values.router.cacheAddress) (not .Values.cache.enabled)) (include "cairn.routesEngines" .) -}}
{{- else if .Values.router.cacheAddress -}}
{{ .Values.router.cacheAddress }}
{{- else if gt (int .Values.cache.replicas) 1 -}}
{{- $list := list -}}
{{- range $i := until (min 8 .Values.cache.replicas | int) -}}
{{- $list = append $list (printf "%s-cache-%d.%s-cache-peers.%s.svc:7400" (include "cairn.name" $) $i (include "cairn.name" $) $.Release.Namespace) -}}
{{- end -}}
{{ join "," $list }}
{{- else -}}
{{ include "cairn.name" . }}-cache.{{ .Release.Namespace }}.svc:7400
{{- end -}}
{{- end -}}

{{/* MiB of a router: docs/operate/operations.md, "Memory of a router". A test compares it with what the program says. */}}
{{- define "cairn.routerMemory" -}}
{{- $router := .Values.router -}}
{{- $config := $router.config -}}
{{- $body := int64 (include "cairn.mebibytesOf" (dict "config" $config "sizes" (dict "http.max_body" "8MiB"))) -}}
{{- $picker := int64 0 -}}
{{- if $router.picker.enabled -}}
{{- $bodies := int64 (include "cairn.mebibytesOf" (dict "config" $config "sizes" (dict "picker.all_bodies" "64MiB"))) -}}
{{- $longest := int64 (include "cairn.mebibytesOf" (dict "config" $config "sizes" (dict "picker.max_body" "8MiB"))) -}}
{{- $picker = add $bodies (max $bodies (add (mul 2 (add $longest 1)) 16)) -}}
{{- $body = max $body $longest -}}
{{- end -}}
{{- /* Bodies are read as JSON: a tree has at most 56 MiB of values, and four times the text. */ -}}
{{- $threads := int64 (include "cairn.settingOr" (dict "settings" $config "key" "http.threads" "default" "2")) -}}
{{- $caches := 1 -}}
{{- $tokens := $router.engines.tokens -}}
{{- if and (include "cairn.routesEngines" .) (or (eq $tokens "tokenize") (and (eq $tokens "auto") $router.engines.events)) -}}
{{- $threads = add $threads $router.threads -}}
{{- if include "cairn.routerModelClaim" . }}{{ $caches = 2 }}{{ end -}}
{{- end -}}
{{- $reading := mul $threads (add (mul 4 $body) 56) -}}
{{- $head := include "cairn.kibibytes" (include "cairn.settingOr" (dict "settings" $config "key" "http.max_head" "default" "16KiB")) -}}
{{- $connection := add $head 28 -}}
{{- if include "cairn.hasTls" . }}{{ $connection = add $connection 72 }}{{ end -}}
{{- $most := int64 (include "cairn.settingOr" (dict "settings" $config "key" "http.max_connections" "default" "8192")) -}}
{{- $connections := div (add (mul $most $connection) 1023) 1024 -}}
{{- $requests := include "cairn.mebibytesOf" (dict "config" $config "sizes" (dict "rpc.requests" "256MiB")) -}}
{{- $blocks := include "cairn.settingOr" (dict "settings" $config "key" "engines.event_blocks" "default" "262144") -}}
{{- $followed := 0 -}}
{{- $named := 0 -}}
{{- range $router.engines.events -}}
{{- if hasPrefix "dns:" . -}}
{{- $named = include "cairn.settingOr" (dict "settings" $config "key" "engines.event_engines" "default" "32") -}}
{{- else -}}
{{- $followed = add $followed 1 -}}
{{- end -}}
{{- end -}}
{{- $events := div (add (mul (add $followed (int64 $named)) (int64 $blocks) 190) 1048575) 1048576 -}}
{{- $sizes := dict "http.all_bodies" "256MiB" "http.all_unread" "64MiB" "all_answers" "128MiB" -}}
{{- $caching := mul $caches $router.tokenCacheMiB -}}
{{- /* The process, and what it has taken already when it looks whether the rest fits. */ -}}
{{- $bounds := add (include "cairn.mebibytesOf" (dict "config" $config "sizes" $sizes)) (mul 2 $requests) $picker $reading $connections $events (sub $caching $router.tokenCacheMiB) 128 32 -}}
{{- $overhead := include "cairn.covers" (dict "name" "router.overheadMiB" "given" $router.overheadMiB "bounds" $bounds "needed" $bounds) -}}
{{- add $router.indexMiB $router.tokenCacheMiB $overhead -}}
{{- end -}}
